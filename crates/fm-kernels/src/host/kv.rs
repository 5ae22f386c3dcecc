//! Keys and values in host memory.

use half::f16;

use crate::backend::{AttentionShape, KV_BLOCK_TOKENS, KvFormat, KvOverflow, KvView, View};

use super::HostBuf;

/// A little-endian f16.
pub type Half = [u8; 2];

/// A key's or value's number, as it is kept.
pub trait Kept: Copy {
    /// What it stands for.
    fn value(self) -> f32;
}

impl Kept for f32 {
    fn value(self) -> f32 {
        self
    }
}

impl Kept for Half {
    fn value(self) -> f32 {
        f16::from_le_bytes(self).to_f32()
    }
}

/// Keys or values of the blocks of a layer.
#[derive(Debug)]
pub enum HostKv {
    /// In [`KvFormat::F32`].
    F32(HostBuf),
    /// In [`KvFormat::F16`].
    F16(HostBuf<Half>),
}

/// What a session may see, in the format that it has.
#[derive(Clone, Copy, Debug)]
pub enum HostKvView<'a> {
    /// In [`KvFormat::F32`].
    F32(KvLanes<'a, f32>),
    /// In [`KvFormat::F16`].
    F16(KvLanes<'a, Half>),
}

/// See [`KvView`].
#[derive(Clone, Copy, Debug)]
pub struct KvLanes<'a, E> {
    /// Keys of the layer's pool.
    pub keys: &'a [E],
    /// Values of the layer's pool; `None` if they are the first `v_dim` of every key.
    pub values: Option<&'a [E]>,
    /// Blocks of the session, by position.
    pub table: &'a [u32],
    /// `[heads]`
    pub sinks: Option<&'a [f32]>,
}

impl<'a, E> KvLanes<'a, E> {
    /// The values that begin at a lane of a block, `kv_head · KV_BLOCK_TOKENS` of them after the
    /// block's first, and how far apart they are.
    pub(crate) fn values(&self, shape: AttentionShape, lane: usize) -> (&'a [E], usize) {
        match self.values {
            Some(values) => (&values[lane * shape.v_dim..], shape.v_dim),
            None => (&self.keys[lane * shape.k_dim..], shape.k_dim),
        }
    }
}

impl<'a> From<&KvView<'a, HostKv, HostBuf>> for HostKvView<'a> {
    fn from(kv: &KvView<'a, HostKv, HostBuf>) -> Self {
        let (table, sinks) = (kv.table, kv.sinks.map(|sinks| &sinks[..]));
        match (kv.keys, kv.values) {
            (HostKv::F32(keys), None) => Self::F32(KvLanes { keys, values: None, table, sinks }),
            (HostKv::F16(keys), None) => Self::F16(KvLanes { keys, values: None, table, sinks }),
            (HostKv::F32(keys), Some(HostKv::F32(values))) => {
                Self::F32(KvLanes { keys, values: Some(values), table, sinks })
            }
            (HostKv::F16(keys), Some(HostKv::F16(values))) => {
                Self::F16(KvLanes { keys, values: Some(values), table, sinks })
            }
            _ => unreachable!("keys and values of a layer have one format"),
        }
    }
}

impl HostKv {
    /// So many zeros.
    pub(super) fn zeroed(format: KvFormat, len: usize) -> Self {
        match format {
            KvFormat::F32 => Self::F32(HostBuf::zeroed(len)),
            KvFormat::F16 => Self::F16(HostBuf::zeroed(len)),
        }
    }

    /// These numbers, rounded; what is beyond the format is infinite.
    pub fn rounded(format: KvFormat, values: &[f32]) -> Self {
        let mut kept = Self::zeroed(format, values.len());
        match &mut kept {
            Self::F32(kept) => kept.copy_from_slice(values),
            Self::F16(kept) => {
                for (kept, value) in kept.iter_mut().zip(values) {
                    *kept = f16::from_f32(*value).to_le_bytes();
                }
            }
        }
        kept
    }

    /// See [`crate::Backend::kv_write`].
    pub(super) fn write(
        &mut self,
        x: &View<'_, HostBuf>,
        position: usize,
        (table, dim): (&[u32], usize),
    ) -> Option<KvOverflow> {
        let place = (position, table, dim);
        let mut first = None;
        match self {
            Self::F32(pool) => write_rows(x, place, pool, |value| value),
            Self::F16(pool) => write_rows(x, place, pool, |value| {
                round(value).unwrap_or_else(|overflow| {
                    first.get_or_insert(overflow);
                    f16::MAX.copysign(f16::from_f32(value)).to_le_bytes()
                })
            }),
        }
        first
    }

    /// See [`crate::Backend::kv_copy_block`].
    pub(super) fn copy_block(&mut self, from: usize, to: usize, len: usize) {
        match self {
            Self::F32(pool) => pool.copy_within(from * len..(from + 1) * len, to * len),
            Self::F16(pool) => pool.copy_within(from * len..(from + 1) * len, to * len),
        }
    }

    /// See [`crate::Backend::kv_read`].
    pub(super) fn read(&self, first: usize, bytes: &mut [u8]) {
        match self {
            Self::F32(pool) => {
                for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(&pool[first..]) {
                    *bytes = value.to_le_bytes();
                }
            }
            Self::F16(pool) => {
                let values = pool[first..].as_flattened();
                bytes.copy_from_slice(&values[..bytes.len()]);
            }
        }
    }

    /// See [`crate::Backend::kv_restore`].
    pub(super) fn restore(&mut self, bytes: &[u8], first: usize) {
        match self {
            Self::F32(pool) => {
                for (value, bytes) in pool[first..].iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16(pool) => {
                pool[first..].as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// Puts rows of a session into the blocks of `pool`, each value as `keep` says.
fn write_rows<E>(
    x: &View<'_, HostBuf>,
    (position, table, dim): (usize, &[u32], usize),
    pool: &mut [E],
    mut keep: impl FnMut(f32) -> E,
) {
    let kv_heads = x.cols / dim;
    for i in 0..x.rows {
        let block = table[(position + i) / KV_BLOCK_TOKENS] as usize;
        let token = (position + i) % KV_BLOCK_TOKENS;
        for (head, values) in x.row(i).chunks_exact(dim).enumerate() {
            let at = ((block * kv_heads + head) * KV_BLOCK_TOKENS + token) * dim;
            for (kept, value) in pool[at..at + dim].iter_mut().zip(values) {
                *kept = keep(*value);
            }
        }
    }
}

fn round(value: f32) -> Result<Half, KvOverflow> {
    let kept = f16::from_f32(value);
    if kept.is_infinite() && value.is_finite() {
        return Err(KvOverflow { value, format: KvFormat::F16 });
    }
    Ok(kept.to_le_bytes())
}
