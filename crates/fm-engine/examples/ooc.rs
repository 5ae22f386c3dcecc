//! ooc MODEL MEMORY FIRST TOKENS EVERY [prefill N]
#![allow(clippy::all, clippy::pedantic, clippy::print_stdout, clippy::unwrap_used)]
use fm_engine::{
    Engine, Load, Places,
    bytes::Bytes,
    local::read_stats,
    options::{ENGINE, EngineOptions},
};
use fm_model::runner::{Batch, Row, RowInput, Wants};
use std::{ops::ControlFlow, path::PathBuf, time::Instant};
use xxhash_rust::xxh3::Xxh3Default;

fn cpu() -> (f64, f64) {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() / 100.0, f[12].parse::<f64>().unwrap() / 100.0)
}
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(&a[0]);
    if a[1] == "probe" {
        return record_probe(&dir);
    }
    let memory = Bytes::parse(&a[1]).map(|b| b.0);
    let first: u32 = a[2].parse().unwrap();
    let count: u32 = a[3].parse().unwrap();
    let every: u32 = a[4].parse().unwrap();
    let mut prefill = 0_u32;
    let mut sessions = 1_u32;
    let mut reuse = false;
    let mut stride = 7000;
    let mut options = EngineOptions { memory, context: Some(4096), ..EngineOptions::default() };
    let mut it = a[5..].iter();
    while let Some(k) = it.next() {
        let v = it.next().unwrap();
        match k.as_str() {
            "prefill" => prefill = v.parse().unwrap(),
            "sessions" => sessions = v.parse().unwrap(),
            "stride" => stride = v.parse().unwrap(),
            "reuse" => reuse = true,
            _ => ENGINE.iter().find(|r| r.name == k).unwrap().apply(&mut options, v).unwrap(),
        }
    }
    let _ = reuse;
    let places = Places { root: "/".into(), cache_dir: None };
    let t = Instant::now();
    let load = Load { sessions: sessions as usize, logits_rows: sessions as usize };
    let mut e = Engine::open(&dir, &options, load, &places).unwrap();
    println!(
        "open {:.1} s, slots {:?}, chunk {}, context {}",
        t.elapsed().as_secs_f64(),
        e.plan.store.classes,
        e.plan.decoder.rows_max,
        e.plan.context
    );
    let probe = |e: &Engine| raw_probe(&e.files[0]);
    let stats = e.stats_handle();
    let mut hash = Xxh3Default::new();
    let ids: Vec<_> = (0..sessions).map(|_| e.runner.open(4096).unwrap()).collect();
    let mut pos = 0_u32;
    let feed = |e: &mut Engine, pos: u32, n: u32, hash: &mut Xxh3Default| {
        let mut batch = Batch::default();
        for (s, id) in ids.iter().enumerate() {
            for i in 0..n {
                let wants = Wants { logits: i + 1 == n, ..Wants::default() };
                let input = RowInput::Token((first + pos + i + s as u32 * stride) % 32768);
                batch.rows.push(Row { session: *id, input, position: pos + i, wants });
            }
        }
        let out = e.runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(out.spoiled.is_empty());
        for l in out.logits {
            hash.update(&l.to_bits().to_le_bytes());
        }
    };
    let mut segment = |e: &mut Engine,
                       pos: &mut u32,
                       n: u32,
                       step: u32,
                       hash: &mut Xxh3Default,
                       p0: f64| {
        let (before, times, c0, t) = (read_stats(&stats), e.runner.times(), cpu(), Instant::now());
        for _ in 0..n {
            feed(e, *pos, step, hash);
            *pos += step;
        }
        let s = t.elapsed().as_secs_f64();
        let (d, tm, c1) = (read_stats(&stats) - before, e.runner.times() - times, cpu());
        let p1 = probe(e);
        let rate = d.read_bytes as f64 / s / 1e9;
        let p = (p0 + p1) / 2.0;
        let k = 1e3 / f64::from(n * step);
        println!(
            "{:5} {:6.2} tok/s {:6.1} MB/tok hit {:.3} {:.3} of {:.3} ({:.3},{:.3}) = {:4.1} %  ms/tok: total {:.1} wait {:.1} att {:.1} moe-wait {:.1} head {:.1} cpu u {:.1} s {:.1}{}",
            *pos,
            f64::from(n * step) / s,
            d.read_bytes as f64 / 1e6 / f64::from(n * step),
            d.hit_rate(),
            rate,
            p,
            p0,
            p1,
            100.0 * rate / p,
            s * k,
            d.wait_ns as f64 / 1e9 * k,
            tm.attention.as_secs_f64() * k,
            (tm.moe.as_secs_f64() - d.wait_ns as f64 / 1e9) * k,
            tm.head.as_secs_f64() * k,
            (c1.0 - c0.0) * k,
            (c1.1 - c0.1) * k,
            extra(&d, s)
        );
        (d.read_bytes as f64, s, p1, p)
    };
    let mut p0 = probe(&e);
    if prefill > 0 {
        let chunk = e.runner.rows_max() as u32;
        let (mut b, mut t) = (0.0, 0.0);
        while pos < prefill {
            let n = chunk.min(prefill - pos);
            let r = segment(&mut e, &mut pos, 1, n, &mut hash, p0);
            b += r.0;
            t += r.1;
            p0 = r.2;
        }
        println!(
            "prefill {prefill}: {:.1} tok/s, {:.2} GB, {:.3} GB/s",
            f64::from(prefill) / t,
            b / 1e9,
            b / t / 1e9
        );
    }
    let (mut bytes, mut time, mut possible) = (0.0, 0.0, 0.0);
    let mut ratios = Vec::new();
    for i in 0..count / every {
        let r = segment(&mut e, &mut pos, every, 1, &mut hash, p0);
        p0 = r.2;
        if i >= count / every / 3 {
            bytes += r.0;
            time += r.1;
            possible += r.1 * r.3;
            ratios.push(r.0 / r.1 / 1e9 / r.3);
        }
    }
    ratios.sort_by(f64::total_cmp);
    if time > 0.0 {
        println!(
            "last 2/3: {:.3} GB/s, {:.1} % of probes, median segment {:.1} %",
            bytes / time / 1e9,
            100.0 * bytes / 1e9 / possible,
            100.0 * ratios[ratios.len() / 2]
        );
    }
    println!("hash {:032x}  cpu {:?}", hash.digest128(), cpu());
}
fn extra(d: &fm_store::Stats, s: f64) -> String {
    format!(
        " busy {:.1} % at {:.3}",
        d.busy_ns as f64 / 1e7 / s,
        d.read_bytes as f64 / d.busy_ns as f64
    )
}
/// Layers' worth of random experts, requested one after the other, nothing computed.
fn record_probe(dir: &std::path::Path) {
    use fm_format::key::*;
    use fm_store::{Order, PolicyKind, Store, StoreOptions, reader};
    let options = EngineOptions {
        memory: Some(4_000_000_000),
        context: Some(64),
        ..EngineOptions::default()
    };
    let places = Places { root: "/".into(), cache_dir: None };
    let planned = fm_engine::engine::plan(dir, &options, Load::default(), &places).unwrap();
    let catalog = &planned.spec.catalog;
    let mut x =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
            as u64
            | 1;
    let mut random = |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    for round in 0..2 {
        for kind in [reader::ReaderKind::IoUring, reader::ReaderKind::Pread] {
            for depth in [2, 4, 8, 16] {
                let raw = raw_probe(&catalog.files[0]);
                for each in [4_usize, 64] {
                    let ro = reader::ReaderOptions {
                        io: reader::IoMode::Direct,
                        kind,
                        depth,
                        ..Default::default()
                    };
                    let (reader, _) = reader::open(catalog, ro).unwrap();
                    let o = StoreOptions {
                        budget_bytes: reader.staging_bytes() + 160 * 1_769_472,
                        policy: PolicyKind::Lru,
                        top_k: 8,
                        chunk_bytes: 64 << 20,
                    };
                    let mut store = Store::open(catalog, o, reader).unwrap();
                    let (mut t, mut b, mut c0) = (Instant::now(), store.stats(), cpu());
                    let mut n = 0;
                    loop {
                        let mut wanted: Vec<ExpertIndex> =
                            (0..each).map(|_| ExpertIndex(random(256) as u16)).collect();
                        wanted.sort();
                        wanted.dedup();
                        let mut ticket =
                            store.request(LayerIndex(random(40) as u16), &wanted).unwrap();
                        while let Some(a) = store.next(&mut ticket, Order::Arrival).unwrap() {
                            a.record.unwrap();
                        }
                        n += wanted.len();
                        if n < 400 {
                            t = Instant::now();
                            b = store.stats();
                            c0 = cpu();
                        } else if t.elapsed().as_millis() > 400 {
                            break;
                        }
                    }
                    let s = t.elapsed().as_secs_f64();
                    let d = store.stats() - b;
                    let c = cpu();
                    let rate = d.read_bytes as f64 / s / 1e9;
                    println!(
                        "{round} {kind:?} depth {depth:2} records {each:2}: {rate:.2} GB/s raw {raw:.2} = {:.0} %  busy {:.2} cpu {:.2}",
                        100.0 * rate / raw,
                        d.busy_ns as f64 / s / 1e9,
                        (c.0 + c.1 - c0.0 - c0.1) / s
                    );
                }
            }
        }
    }
}
/// Random aligned MiB of the whole file at depth 4, never fewer than 8 queued.
fn raw_probe(file: &std::path::Path) -> f64 {
    use fm_format::{
        key::*,
        quant::{FloatKind, float_format},
        record::*,
    };
    use fm_store::{Order, PolicyKind, Store, StoreOptions, reader};
    use std::sync::Arc;
    const READ: usize = 1 << 20;
    let count = (std::fs::metadata(file).unwrap().len() / READ as u64) as usize;
    let half = MatrixShape { rows: 1, cols: READ / 16, format: float_format(FloatKind::F32) };
    let layout =
        RecordLayout { gate: half, up: half, down: MatrixShape { cols: READ / 8, ..half } };
    let mut x =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
            as u64
            | 1;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as usize % count
    };
    let records: Vec<Record> = (0..4096)
        .map(|_| Record {
            pieces: vec![Piece {
                extent: Extent {
                    file: FileIndex(0),
                    offset: (random() * READ) as u64,
                    bytes: READ as u64,
                },
                place: Place::Copy { at: 0 },
            }],
            checksums: None,
        })
        .collect();
    let layer = LayerRecords { layout, records };
    let catalog = Arc::new(Catalog { files: vec![file.to_path_buf()], layers: vec![Some(layer)] });
    let options = reader::ReaderOptions { io: reader::IoMode::Direct, ..Default::default() };
    let (reader, _) = reader::open(&catalog, options).unwrap();
    let o = StoreOptions {
        budget_bytes: reader.staging_bytes() + (12 * READ) as u64,
        policy: PolicyKind::Lru,
        top_k: 1,
        chunk_bytes: 12 * READ,
    };
    let mut store = Store::open(&catalog, o, reader).unwrap();
    let all: Vec<ExpertIndex> = (0..4096).map(ExpertIndex).collect();
    let mut ticket = store.request(LayerIndex(0), &all).unwrap();
    let (mut t, mut read) = (Instant::now(), 0);
    let mut warm = 16;
    while let Some(a) = store.next(&mut ticket, Order::Arrival).unwrap() {
        a.record.unwrap();
        if warm > 0 {
            warm -= 1;
            t = Instant::now();
        } else {
            read += READ;
        }
        if t.elapsed().as_millis() > 250 {
            break;
        }
    }
    read as f64 / t.elapsed().as_secs_f64() / 1e9
}
