//! Warm starts: a run knows from the beginning what earlier ones used.

use super::Store;
use crate::heat::Heat;

impl Store {
    /// How much every expert was used lately, by this run and those that it knows of. `None` if it has
    /// learned nothing since it was opened.
    pub fn heat(&self) -> Option<Heat> {
        let layers = self.entries.layers().map(|layer| {
            let Some(layer) = layer else { return Vec::new() };
            let policy = &self.classes[layer.class].policy;
            layer.entries().map(|entry| policy.heat(&self.entries[entry].standing)).collect()
        });
        let heat = Heat { layers: layers.collect() };
        (self.now > 0 && heat.is_something()).then_some(heat)
    }

    /// Tells the policies what earlier runs used. Nothing is read for it.
    ///
    /// # Panics
    /// If `heat` has other layers or experts, or after the first request.
    pub fn warm(&mut self, heat: &Heat) {
        assert_eq!(self.now, 0, "a store is warmed before it is used");
        let layers: Vec<_> = self.entries.layers().collect();
        assert_eq!(layers.len(), heat.layers.len(), "heat is of the same model");
        for (layer, heats) in layers.into_iter().zip(&heat.layers) {
            let Some(layer) = layer else { continue };
            assert_eq!(layer.count, heats.len(), "heat is of the same model");
            let mean = heats.iter().sum::<f32>() / layer.count.max(1) as f32;
            let policy = &mut self.classes[layer.class].policy;
            for (entry, heat) in layer.entries().zip(heats) {
                policy.warm(&mut self.entries[entry].standing, *heat, mean);
            }
        }
    }
}
