//! The fuzz targets over their corpus, and over copies of it with some bytes changed: a little fuzzing in every run.
//!
//! `PAGED_ATTENTION_FUZZ_ROUNDS` sets how many copies there are of each file.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::host::snapshot::Snapshot;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "{} is nearly empty", folder.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn rounds() -> u64 {
    std::env::var("PAGED_ATTENTION_FUZZ_ROUNDS").map_or(300, |rounds| rounds.parse().expect("a number of rounds"))
}

/// Some bytes changed, cut out, or written twice.
fn mutate(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.insert(at, rng.random()),
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 if at < bytes.len() => bytes[at] = rng.random(),
            _ => {
                let end = (at + rng.random_range(0..20)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
        }
    }
}

#[test]
fn the_manager_survives_its_corpus() {
    for (file, bytes) in corpus("manager").iter().enumerate() {
        bodies::manager(bytes);
        for round in 0..rounds() {
            let mut changed = bytes.clone();
            let mut rng = StdRng::seed_from_u64(round << 8 | file as u64);
            (0..4).for_each(|_| mutate(&mut changed, &mut rng));
            bodies::manager(&changed);
        }
    }
}

#[test]
fn the_snapshot_reader_survives_its_corpus() {
    let (mut read, mut refused) = (0, 0);
    for (file, bytes) in corpus("snapshot").iter().enumerate() {
        bodies::snapshot(bytes);
        for round in 0..rounds() {
            let mut changed = bytes.clone();
            let mut rng = StdRng::seed_from_u64(round << 8 | file as u64);
            mutate(&mut changed, &mut rng);
            bodies::snapshot(&changed);
            let resealed = Snapshot::from_bytes(&bodies::reseal(&changed));
            *if resealed.is_ok() { &mut read } else { &mut refused } += 1;
        }
    }
    assert!(read > 0 && refused > 0, "{read} read and {refused} refused: one of the two was not tried");
}
