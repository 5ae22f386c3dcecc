//! Keys and values in reference-counted blocks of [`KV_BLOCK_TOKENS`] tokens from a planned pool.
//!
//! A block number means the same positions in every attention layer. Sessions that were forked share
//! blocks until one of them writes into a shared block; it then gets a copy of its own.

use fm_kernels::{
    Backend, DeviceError,
    backend::{DeviceResult, KV_BLOCK_TOKENS, KvFormat, KvOverflow, KvView, View},
};

use crate::spec::KvShape;

/// Why a session cannot grow.
#[derive(Debug, thiserror::Error)]
pub enum OutOfBlocks {
    /// Every block is in use.
    #[error("all {blocks} key/value blocks of {KV_BLOCK_TOKENS} tokens are in use")]
    Exhausted {
        /// Blocks of the pool.
        blocks: usize,
    },
    /// The device failed while it copied a block.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The blocks of one session, by position.
#[derive(Debug)]
pub(crate) struct BlockTable(Vec<u32>);

impl BlockTable {
    /// An empty table that never has to grow.
    pub(crate) fn with_room_for(tokens: u32) -> Self {
        Self(Vec::with_capacity((tokens as usize).div_ceil(KV_BLOCK_TOKENS)))
    }

    pub(crate) fn blocks(&self) -> &[u32] {
        &self.0
    }
}

/// Keys and values of one attention layer, all sessions.
#[derive(Debug)]
struct KvLayer<B: Backend> {
    keys: B::Kv,
    /// `None` if they are a part of the keys.
    values: Option<B::Kv>,
    shape: KvShape,
}

impl<B: Backend> KvLayer<B> {
    fn key_block_len(&self) -> usize {
        self.shape.kv_heads * KV_BLOCK_TOKENS * self.shape.k_dim
    }

    fn value_block_len(&self) -> usize {
        self.shape.kv_heads * KV_BLOCK_TOKENS * self.shape.v_dim
    }

    /// Its pools, each with the values of a head.
    fn pools(&self) -> impl Iterator<Item = (&B::Kv, usize)> {
        let values = self.values.iter().map(|values| (values, self.shape.v_dim));
        std::iter::once((&self.keys, self.shape.k_dim)).chain(values)
    }

    /// Its pools, each with the length of a block.
    fn pools_mut(&mut self) -> impl Iterator<Item = (&mut B::Kv, usize)> {
        let (keys_len, values_len) = (self.key_block_len(), self.value_block_len());
        let values = self.values.iter_mut().map(move |values| (values, values_len));
        std::iter::once((&mut self.keys, keys_len)).chain(values)
    }
}

/// The pool: every block of every attention layer.
#[derive(Debug)]
pub struct KvPool<B: Backend> {
    layers: Vec<KvLayer<B>>,
    format: KvFormat,
    /// Sessions that use a block; 0 is free.
    references: Vec<u32>,
    /// Free blocks, the next one last.
    free: Vec<u32>,
}

/// Bytes of one block over all layers of the given shapes.
pub fn block_bytes(shapes: impl Iterator<Item = KvShape>, format: KvFormat) -> u64 {
    let values = shapes.map(|shape| shape.kv_heads * (shape.k_dim + shape.v_dim));
    (format.value_bytes() * values.sum::<usize>() * KV_BLOCK_TOKENS) as u64
}

impl<B: Backend> KvPool<B> {
    /// A pool of `blocks` blocks for attention layers of these shapes.
    pub(crate) fn new(
        device: &B,
        shapes: impl Iterator<Item = KvShape>,
        (blocks, format): (usize, KvFormat),
    ) -> DeviceResult<Self> {
        let layers = shapes.map(|shape| {
            let lane = blocks * shape.kv_heads * KV_BLOCK_TOKENS;
            let keys = device.kv_alloc(format, lane * shape.k_dim)?;
            let values = (shape.v_dim > 0).then(|| device.kv_alloc(format, lane * shape.v_dim));
            Ok(KvLayer { keys, values: values.transpose()?, shape })
        });
        Ok(Self {
            layers: layers.collect::<DeviceResult<_>>()?,
            format,
            references: vec![0; blocks],
            free: (0..blocks as u32).rev().collect(),
        })
    }

    /// Gives `table` blocks of its own for the positions from `position` to `end`.
    pub(crate) fn prepare(
        &mut self,
        device: &B,
        table: &mut BlockTable,
        position: u32,
        end: u32,
    ) -> Result<(), OutOfBlocks> {
        if self.layers.is_empty() {
            return Ok(());
        }
        let first = position as usize / KV_BLOCK_TOKENS;
        if let Some(&block) = table.0.get(first).filter(|b| self.references[**b as usize] > 1) {
            let own = self.take()?;
            for layer in &mut self.layers {
                for (pool, len) in layer.pools_mut() {
                    device.kv_copy_block(block, own, len, pool)?;
                }
            }
            self.references[block as usize] -= 1;
            table.0[first] = own;
        }
        while table.0.len() * KV_BLOCK_TOKENS < end as usize {
            table.0.push(self.take()?);
        }
        Ok(())
    }

    fn take(&mut self) -> Result<u32, OutOfBlocks> {
        let blocks = self.references.len();
        let block = self.free.pop().ok_or(OutOfBlocks::Exhausted { blocks })?;
        self.references[block as usize] = 1;
        Ok(block)
    }

    /// Releases the blocks behind the first `tokens` positions.
    pub(crate) fn truncate(&mut self, table: &mut BlockTable, tokens: u32) {
        let keep = (tokens as usize).div_ceil(KV_BLOCK_TOKENS);
        while table.0.len() > keep {
            let block = table.0.pop().expect("longer than what is kept");
            self.references[block as usize] -= 1;
            if self.references[block as usize] == 0 {
                self.free.push(block);
            }
        }
    }

    /// Blocks that [`KvPool::prepare`] would take.
    pub(crate) fn wanted(&self, table: &BlockTable, position: u32, end: u32) -> usize {
        if self.layers.is_empty() {
            return 0;
        }
        let first = table.0.get(position as usize / KV_BLOCK_TOKENS);
        let copied = first.is_some_and(|block| self.references[*block as usize] > 1);
        let more = (end as usize).div_ceil(KV_BLOCK_TOKENS).saturating_sub(table.0.len());
        more + usize::from(copied)
    }

    /// Makes `to`, which is empty, another user of the blocks with the first `tokens` positions of
    /// `from`.
    pub(crate) fn share(&mut self, from: &BlockTable, tokens: u32, to: &mut BlockTable) {
        for &block in from.0.iter().take((tokens as usize).div_ceil(KV_BLOCK_TOKENS)) {
            self.references[block as usize] += 1;
            to.0.push(block);
        }
    }

    /// Blocks nobody uses.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Writes keys and values of consecutive positions of one session into layer `layer`. Values
    /// come where the layer keeps them. Returns what the format cannot hold, see [`Backend::kv_write`].
    pub(crate) fn write(
        &mut self,
        device: &B,
        (layer, table): (usize, &BlockTable),
        position: u32,
        keys: View<'_, B::Buf>,
        values: Option<View<'_, B::Buf>>,
    ) -> DeviceResult<Option<KvOverflow>> {
        let layer = &mut self.layers[layer];
        let shape = layer.shape;
        let of_keys = device.kv_write(keys, position, &table.0, shape.k_dim, &mut layer.keys)?;
        let of_values = match (values, &mut layer.values) {
            (Some(values), Some(pool)) => {
                device.kv_write(values, position, &table.0, shape.v_dim, pool)?
            }
            (None, None) => None,
            _ => unreachable!("a layer brings values if it keeps them"),
        };
        Ok(of_keys.or(of_values))
    }

    /// What the rows of a session may read in layer `layer`.
    pub(crate) fn view<'a>(
        &'a self,
        layer: usize,
        table: &'a BlockTable,
    ) -> KvView<'a, B::Kv, B::Buf> {
        let layer = &self.layers[layer];
        KvView { keys: &layer.keys, values: layer.values.as_ref(), table: &table.0, sinks: None }
    }

    /// Parts of a block: the keys of a layer, or its values.
    pub(crate) fn parts(&self) -> usize {
        self.layers.iter().map(|layer| layer.pools().count()).sum()
    }

    /// Bytes of a part, of all heads and positions.
    pub(crate) fn part_bytes(&self, part: usize) -> usize {
        let mut parts = self.layers.iter().flat_map(|layer| {
            layer.pools().map(|(_, dim)| layer.shape.kv_heads * KV_BLOCK_TOKENS * dim)
        });
        self.format.value_bytes() * parts.nth(part).unwrap_or(0)
    }

    /// Reads a part of a block, little-endian in the pool's format: layer by layer, keys before values. Only
    /// the first `tokens` positions are the session's; what an earlier user left behind them reads as zero.
    pub(crate) fn read_part(
        &self,
        device: &B,
        (block, tokens): (u32, usize),
        part: usize,
        bytes: &mut Vec<u8>,
    ) -> DeviceResult {
        bytes.resize(self.part_bytes(part), 0);
        let value_bytes = self.format.value_bytes();
        let mut parts = self.layers.iter().flat_map(KvLayer::pools);
        let Some((buf, dim)) = parts.nth(part) else { return Ok(()) };
        device.kv_read(buf, block as usize * bytes.len() / value_bytes, bytes)?;
        for lane in bytes.chunks_exact_mut(KV_BLOCK_TOKENS * dim * value_bytes) {
            lane[tokens.min(KV_BLOCK_TOKENS) * dim * value_bytes..].fill(0);
        }
        Ok(())
    }

    /// The counterpart of [`KvPool::read_part`].
    pub(crate) fn write_part(
        &mut self,
        device: &B,
        block: u32,
        part: usize,
        bytes: &[u8],
    ) -> DeviceResult {
        let mut parts = self.layers.iter_mut().flat_map(KvLayer::pools_mut);
        let Some((buf, len)) = parts.nth(part) else { return Ok(()) };
        device.kv_restore(bytes, buf, block as usize * len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_kernels::reference::Reference;

    fn pool(blocks: usize) -> (Reference, KvPool<Reference>) {
        let shape = KvShape { kv_heads: 1, k_dim: 2, v_dim: 1 };
        let device = Reference::open();
        let pool = KvPool::new(&device, [shape].into_iter(), (blocks, KvFormat::F32)).unwrap();
        (device, pool)
    }

    #[test]
    fn a_fork_that_writes_gets_its_own_block_and_the_original_keeps_its_values() {
        let (device, mut pool) = pool(3);
        let (mut a, mut b) = (BlockTable::with_room_for(64), BlockTable::with_room_for(64));
        pool.prepare(&device, &mut a, 0, 2).unwrap();
        let (keys, values) = (vec![1.0, 2.0, 3.0, 4.0].into(), vec![5.0, 6.0].into());
        let rows = (View::new(&keys, 2, 2), View::new(&values, 2, 1));
        pool.write(&device, (0, &a), 0, rows.0, Some(rows.1)).unwrap();

        pool.share(&a, 2, &mut b);
        pool.prepare(&device, &mut b, 1, 2).unwrap();
        assert_ne!(a.blocks(), b.blocks());
        let (keys, values) = (vec![9.0, 9.0].into(), vec![9.0].into());
        let rows = (View::new(&keys, 1, 2), View::new(&values, 1, 1));
        pool.write(&device, (0, &b), 1, rows.0, Some(rows.1)).unwrap();

        let read = |table: &BlockTable| {
            let (mut keys, mut values, block) = (Vec::new(), Vec::new(), (table.blocks()[0], 2));
            pool.read_part(&device, block, 0, &mut keys).unwrap();
            pool.read_part(&device, block, 1, &mut values).unwrap();
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            (floats(&keys)[..4].to_vec(), floats(&values)[..2].to_vec())
        };
        assert_eq!(read(&a), (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]));
        assert_eq!(read(&b), (vec![1.0, 2.0, 9.0, 9.0], vec![5.0, 9.0]));
    }

    #[test]
    fn blocks_come_back_and_an_empty_pool_says_so() {
        let (device, mut pool) = pool(2);
        let mut table = BlockTable::with_room_for(192);
        pool.prepare(&device, &mut table, 0, 128).unwrap();
        let error = pool.prepare(&device, &mut table, 128, 129).unwrap_err();
        assert!(error.to_string().contains("all 2 key/value blocks"), "{error}");
        pool.truncate(&mut table, 64);
        assert_eq!(pool.free_blocks(), 1);
        pool.truncate(&mut table, 0);
        assert_eq!(pool.free_blocks(), 2);
    }
}
