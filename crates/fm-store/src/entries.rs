//! The table of all experts: where each one is, how popular, and who waits for it.

use std::ops::{Index, IndexMut};

use fm_format::{
    key::{ExpertIndex, ExpertKey, LayerIndex},
    record::{Catalog, MatrixStarts, RecordLayout},
};

use crate::{map::ExpertMap, plan::Plan, policy::Standing};

/// An expert's place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    Absent,
    /// On its way into this slot of its class.
    Loading(u32),
    /// In this slot of its class.
    Resident(u32),
}

/// Whether an expert is there, or on its way, because of a forecast that has not come true yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreseen {
    No,
    /// It had never been loaded.
    New,
    /// It had been loaded and evicted.
    Again,
}

/// What the store knows about an expert, resident or not.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: ExpertKey,
    pub(crate) residence: Residence,
    /// Its policy's opinion.
    pub(crate) standing: Standing,
    /// Requests that have not taken it yet.
    pub(crate) pins: u32,
    /// Whether it was ever loaded: tells a cold miss from a capacity miss.
    pub(crate) seen: bool,
    pub(crate) foreseen: Foreseen,
    /// Where a reader has left its matrices, until it is handed out for the first time: then they are in
    /// place.
    pub(crate) left_at: Option<MatrixStarts>,
}

/// Position of an expert in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryIndex(u32);

impl EntryIndex {
    #[cfg(test)]
    pub(crate) fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its place among all experts, by layer, then by expert.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A layer's experts in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerEntries {
    first: u32,
    pub(crate) count: usize,
    pub(crate) class: usize,
    pub(crate) layout: RecordLayout,
}

impl LayerEntries {
    pub(crate) fn at(self, expert: ExpertIndex) -> EntryIndex {
        EntryIndex(self.first + u32::from(expert.0))
    }

    /// All of them, ascending.
    pub(crate) fn entries(self) -> impl Iterator<Item = EntryIndex> {
        (0..self.count as u32).map(move |at| EntryIndex(self.first + at))
    }
}

/// See the file. Bound: the experts of the catalog.
#[derive(Debug)]
pub(crate) struct Entries {
    /// `None` for layers without routed experts.
    layers: Vec<Option<LayerEntries>>,
    all: Vec<Entry>,
    /// Requests of every layer so far.
    turns: Vec<u32>,
}

impl Entries {
    pub(crate) fn new(catalog: &Catalog, plan: &Plan) -> Self {
        let mut entries = Vec::new();
        let mut layers = Vec::with_capacity(catalog.layers.len());
        for (layer, records) in (0_u16..).zip(&catalog.layers) {
            layers.push(records.as_ref().map(|records| {
                let bytes = records.layout.bytes();
                let class = plan.classes.iter().position(|class| class.record_bytes == bytes);
                let class = class.expect("the plan has a class for every record size");
                let (first, count) = (entries.len() as u32, records.records.len());
                entries.extend((0..count as u16).zip(first..).map(|(expert, id)| {
                    let key = ExpertKey { layer: LayerIndex(layer), expert: ExpertIndex(expert) };
                    let (residence, standing) = (Residence::Absent, Standing::new(key, id));
                    let (foreseen, left_at) = (Foreseen::No, None);
                    Entry { key, residence, standing, pins: 0, seen: false, foreseen, left_at }
                }));
                LayerEntries { first, count, class, layout: records.layout }
            }));
        }
        let turns = vec![0; layers.len()];
        Self { layers, all: entries, turns }
    }

    pub(crate) fn layer(&self, layer: LayerIndex) -> LayerEntries {
        self.layers[layer.index()].expect("the layer has routed experts")
    }

    /// All layers of the model; `None` for those without routed experts.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Option<LayerEntries>> {
        self.layers.iter().copied()
    }

    /// Counts a turn of a layer: how many there were, this one included.
    pub(crate) fn next_turn(&mut self, layer: LayerIndex) -> u32 {
        self.turns[layer.index()] += 1;
        self.turns[layer.index()]
    }

    pub(crate) fn find(&self, key: ExpertKey) -> EntryIndex {
        self.layer(key.layer).at(key.expert)
    }

    /// An expert has lost its slot.
    pub(crate) fn evicted(&mut self, at: EntryIndex, map: &ExpertMap) {
        map.evicted(at);
        let entry = &mut self[at];
        (entry.residence, entry.foreseen) = (Residence::Absent, Foreseen::No);
    }

    /// The most experts that a layer has.
    pub(crate) fn layer_count_max(&self) -> usize {
        self.layers.iter().flatten().map(|layer| layer.count).max().unwrap_or(0)
    }
}

impl Index<EntryIndex> for Entries {
    type Output = Entry;

    fn index(&self, at: EntryIndex) -> &Entry {
        &self.all[at.0 as usize]
    }
}

impl IndexMut<EntryIndex> for Entries {
    fn index_mut(&mut self, at: EntryIndex) -> &mut Entry {
        &mut self.all[at.0 as usize]
    }
}
