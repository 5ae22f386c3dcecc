//! Assembles the records of a layer, many at a time, while the caller is busy with those before.

use std::{
    ops::Range,
    sync::mpsc::{channel, sync_channel},
    thread,
};

use fm_format::{
    FormatError,
    record::{LayerRecords, Piece},
    source::Files,
};

use crate::error::ConvertError;

/// Adjacent pieces are read together up to this many bytes.
const RUN_BYTES: u64 = 8 << 20;

/// Reads all records of `layer` in ascending order and hands them to `take`, with the index of the
/// first of them; padding is zero unless the file has it. A thread reads ahead by one batch.
///
/// Memory: two batches of at most `buffer_bytes` or one record, and the longest piece or
/// [`RUN_BYTES`].
pub(crate) fn each_batch(
    files: &Files,
    layer: &LayerRecords,
    buffer_bytes: usize,
    mut take: impl FnMut(usize, &[u8]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let record_bytes = layer.layout.bytes();
    let count = layer.records.len();
    let step = (buffer_bytes / record_bytes).clamp(1, count.max(1));
    let ranges = || (0..count).step_by(step).map(|first| first..(first + step).min(count));
    thread::scope(|scope| {
        let (filled_in, filled) = sync_channel::<Result<Vec<u8>, FormatError>>(1);
        let (empty_in, empty) = channel::<Vec<u8>>();
        for _ in 0..2 {
            empty_in.send(Vec::with_capacity(step * record_bytes)).expect("`empty` lives");
        }
        let read_ahead = move || {
            let mut run = Vec::new();
            for experts in ranges() {
                // Either end is gone once the other side has failed.
                let Ok(mut batch) = empty.recv() else { return };
                batch.clear();
                batch.resize(experts.len() * record_bytes, 0);
                let read = read_batch(files, layer, experts, &mut run, &mut batch);
                if filled_in.send(read.map(|()| batch)).is_err() {
                    return;
                }
            }
        };
        if thread::Builder::new().spawn_scoped(scope, read_ahead).is_err() {
            // The system has no thread to give.
            return in_turn(files, layer, ranges(), &mut take);
        }
        for experts in ranges() {
            let batch = filled.recv().expect("the reader sends every range")?;
            take(experts.start, &batch)?;
            // After the last batches nobody waits for empty ones.
            let _ = empty_in.send(batch);
        }
        Ok(())
    })
}

/// Reads and hands over by turns.
fn in_turn(
    files: &Files,
    layer: &LayerRecords,
    ranges: impl Iterator<Item = Range<usize>>,
    take: &mut impl FnMut(usize, &[u8]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let (mut run, mut batch) = (Vec::new(), Vec::new());
    for experts in ranges {
        batch.clear();
        batch.resize(experts.len() * layer.layout.bytes(), 0);
        read_batch(files, layer, experts.clone(), &mut run, &mut batch)?;
        take(experts.start, &batch)?;
    }
    Ok(())
}

/// Reads the pieces of some records in the order in which they lie in their files.
fn read_batch(
    files: &Files,
    layer: &LayerRecords,
    experts: Range<usize>,
    run: &mut Vec<u8>,
    batch: &mut [u8],
) -> Result<(), FormatError> {
    let record_bytes = layer.layout.bytes();
    let records = layer.records[experts].iter().enumerate();
    let mut pieces: Vec<(usize, &Piece)> = records
        .flat_map(|(at, record)| record.pieces.iter().map(move |piece| (at * record_bytes, piece)))
        .collect();
    pieces.sort_by_key(|(_, piece)| (piece.extent.file, piece.extent.offset));
    let mut rest = pieces.as_slice();
    while let Some((_, first)) = rest.first() {
        let (count, bytes) = run_of(rest);
        run.resize(bytes as usize, 0);
        files.read(first.extent.file, first.extent.offset, run)?;
        let mut bytes = run.as_slice();
        for (at, piece) in &rest[..count] {
            let (own, tail) = bytes.split_at(piece.extent.bytes as usize);
            layer.place(piece, own, &mut batch[*at..][..record_bytes]);
            bytes = tail;
        }
        rest = &rest[count..];
    }
    Ok(())
}

/// How many of the pieces lie back to back, and their bytes.
fn run_of(pieces: &[(usize, &Piece)]) -> (usize, u64) {
    let first = pieces[0].1.extent;
    let (mut count, mut bytes) = (1, first.bytes);
    for (_, piece) in &pieces[1..] {
        let adjacent =
            piece.extent.file == first.file && piece.extent.offset == first.offset + bytes;
        if !adjacent || bytes + piece.extent.bytes > RUN_BYTES {
            break;
        }
        count += 1;
        bytes += piece.extent.bytes;
    }
    (count, bytes)
}
