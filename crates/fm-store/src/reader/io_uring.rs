//! placeholder
use std::sync::Arc;
use fm_format::record::Catalog;
use super::{Fetch, Fetched, Reader, Wait, disk::Files};
use crate::error::StoreError;
#[derive(Debug)]
pub(super) struct IoUringReader;
impl IoUringReader {
    pub(super) fn open(_: &Arc<Catalog>, _: &Files, _: usize) -> Result<Self, StoreError> {
        Err(StoreError::RingRefused { source: std::io::ErrorKind::Unsupported.into() })
    }
    pub(super) fn registered(&self) -> bool { false }
}
impl Reader for IoUringReader {
    fn submit(&mut self, _: Fetch) {}
    fn reap(&mut self, _: Wait) -> Option<Fetched> { None }
    fn staging_bytes(&self) -> u64 { 0 }
}
