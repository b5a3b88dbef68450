//! The format and its reader, without a device.

use super::*;
use crate::blocks::BlockId;
use crate::blocks::{Domain, Rank};
use crate::config::{CacheConfig, KvDtype};
use crate::layout::KvLayout;

fn layout(block_size: u32) -> KvLayout {
    let config = CacheConfig::new(2, 2, 8).with_v_head_dim(20).with_kv_dtype(KvDtype::Int8);
    config.with_block_size(block_size).with_num_blocks(40).with_max_sequences(4).layout().unwrap()
}

fn record(len: u32, blocks: &[Option<u32>]) -> SequenceRecord {
    let tokens = blocks.iter().all(Option::is_some).then(|| (0..len).collect());
    let rank = Rank { priority: 3, arrival: 7 };
    let blocks = blocks.iter().map(|block| block.map(BlockId::of_pool)).collect();
    SequenceRecord {
        len,
        blocks,
        other_groups: Vec::new(),
        tokens,
        domain: Some(Domain::default().with_salt(b"salt")),
        rank,
    }
}

/// Blocks in which every byte is another.
fn blocks(block_size: u32, ids: &[u32]) -> HostBlocks {
    let mut blocks =
        HostBlocks::zeros(BlockShape::of(&layout(block_size)), ids.iter().copied().map(BlockId::of_pool).collect())
            .unwrap();
    for place in 0..ids.len() {
        for (at, byte) in blocks.block_mut(place).iter_mut().enumerate() {
            *byte = (at * 31 + place * 101 + at / 251) as u8;
        }
    }
    blocks
}

/// Two branches that share a block of 4 tokens and differ in the second, and one that lost its first block.
fn snapshot() -> Snapshot {
    let records =
        [record(6, &[Some(9), Some(4)]), record(7, &[Some(9), Some(2)]), record(9, &[None, Some(12), Some(30)])];
    Snapshot::new(&records, &blocks(4, &[2, 4, 9, 12, 30])).unwrap()
}

/// The row of a token, wherever it lies.
fn row(
    records: &[SequenceRecord],
    blocks: &HostBlocks,
    sequence: usize,
    token: u32,
    layer: u32,
    side: Side,
) -> Vec<u8> {
    let shape = blocks.shape();
    let id = records[sequence].blocks[(token / shape.block_size) as usize].unwrap();
    let row = shape.row_bytes(side);
    let at = (shape.head_offset(layer, side, 1) + u64::from(token % shape.block_size) * row) as usize;
    blocks.block(id).unwrap()[at..at + row as usize].to_vec()
}

#[test]
fn rows_are_the_same_in_blocks_of_every_size_and_the_rest_is_zero() {
    let snapshot = snapshot();
    let source = blocks(4, &[2, 4, 9, 12, 30]);
    let records =
        [record(6, &[Some(9), Some(4)]), record(7, &[Some(9), Some(2)]), record(9, &[None, Some(12), Some(30)])];
    for (block_size, count) in [(4, 5), (1, 6 + 3 + 5), (2, 8), (3, 6), (8, 4), (16, 3), (100, 3)] {
        let (fitted, host) = snapshot.fit(&layout(block_size)).unwrap();
        assert_eq!(host.ids().len(), count, "blocks of {block_size}");
        for (sequence, first, len) in [(0, 0, 6), (1, 0, 7), (2, 4, 9)] {
            for token in first..len {
                for (layer, side) in [(0, Side::K), (1, Side::V)] {
                    let got = row(&fitted, &host, sequence, token, layer, side);
                    assert_eq!(got, row(&records, &source, sequence, token, layer, side), "{block_size} {token}");
                }
            }
        }
        assert_ne!(
            row(&fitted, &host, 0, 5, 0, Side::K),
            row(&fitted, &host, 1, 5, 0, Side::K),
            "a wrong page would not be noticed"
        );
        for (fitted, record) in fitted.iter().zip(&records) {
            assert_eq!((fitted.len, &fitted.tokens, &fitted.rank), (record.len, &record.tokens, &record.rank));
        }
    }
    // Slots that were never filled, and those of the block that was given back, hold nothing of the old pool.
    let (fitted, host) = snapshot.fit(&layout(16)).unwrap();
    for token in [6, 15] {
        let mut longer = fitted.clone();
        longer[0].len = 16;
        assert!(row(&longer, &host, 0, token, 1, Side::K).iter().all(|&byte| byte == 0));
        assert!(row(&longer, &host, 2, token % 4, 1, Side::K).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn bytes_and_files_give_back_what_was_written_and_only_filled_rows() {
    let snapshot = snapshot();
    let bytes = snapshot.to_bytes().unwrap();
    assert_eq!(Snapshot::from_bytes(&bytes).unwrap(), snapshot);
    // 4 and 2 tokens, 3 of the branch, 4 and 1.
    assert_eq!(snapshot.data_bytes(), 14 * snapshot.shape().token_bytes());
    assert!(bytes.len() as u64 - snapshot.data_bytes() < 250, "a large header");
    let empty = Snapshot::new(&[record(0, &[])], &blocks(4, &[])).unwrap();
    assert_eq!(Snapshot::from_bytes(&empty.to_bytes().unwrap()).unwrap(), empty);

    let folder = std::env::temp_dir().join(format!("pagedkv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("talk.pagedkv");
    empty.save(&path).unwrap();
    snapshot.save(&path).unwrap();
    assert_eq!(Snapshot::load(&path, bytes.len() as u64).unwrap(), snapshot);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "something is left over");
    let missing = Snapshot::load(&folder.join("none"), 1000).unwrap_err();
    assert!(matches!(missing, SnapshotError::Io { action: "open", kind: std::io::ErrorKind::NotFound, .. }));
    let nowhere = snapshot.save(&folder.join("none").join("talk")).unwrap_err();
    assert!(matches!(nowhere, SnapshotError::Io { action: "create", .. }), "{nowhere}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_damaged_byte_and_every_cut_is_noticed() {
    let bytes = snapshot().to_bytes().unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(Snapshot::from_bytes(&damaged).is_err(), "byte {at}");
    }
    for len in 0..bytes.len() {
        let error = Snapshot::from_bytes(&bytes[..len]).unwrap_err();
        let kind = matches!(
            error,
            SnapshotError::Truncated { .. } | SnapshotError::TooLarge { .. } | SnapshotError::NotASnapshot { .. }
        );
        assert!(kind, "{len}: {error}");
        // A reader that does not know how much there is.
        let error = Snapshot::read(&bytes[..len], u64::MAX).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Truncated { .. } | SnapshotError::NotASnapshot { .. }),
            "{len}: {error}"
        );
    }
}

#[test]
fn foreign_newer_longer_and_larger_files_are_refused_by_name() {
    let bytes = snapshot().to_bytes().unwrap();
    let edited = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        Snapshot::read(&bytes[..], u64::MAX).unwrap_err()
    };
    assert!(matches!(edited(0, b"GGUF"), SnapshotError::NotASnapshot { .. }));
    assert_eq!(edited(8, &[2]), SnapshotError::Version { found: 2, supported: 1 });
    assert_eq!(edited(8, &[0]), SnapshotError::Version { found: 0, supported: 1 });
    assert!(matches!(edited(12, &[255; 4]), SnapshotError::TooLarge { part: "header", .. }));
    // A length that is a lie: no more is read than there is.
    assert!(matches!(edited(16, &[255; 7]), SnapshotError::Truncated { part: "data", .. }));
    assert_eq!(edited(bytes.len() - 1, &[bytes[bytes.len() - 1] ^ 1]), SnapshotError::Checksum);
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Snapshot::from_bytes(&longer).unwrap_err(), SnapshotError::Trailing);
    let limit = bytes.len() as u64 - 1;
    let refused = Snapshot::read(&bytes[..], limit).unwrap_err();
    assert!(matches!(refused, SnapshotError::TooLarge { part: "data", .. }), "{refused}");
}

/// A snapshot with a right checksum, whatever it says.
fn forged(records: Vec<SequenceRecord>, shape: BlockShape, data: Vec<u8>) -> Result<Snapshot, SnapshotError> {
    let bytes = Snapshot { shape, records, pages: Vec::new(), data }.to_bytes().unwrap();
    Snapshot::from_bytes(&bytes)
}

#[test]
fn headers_that_contradict_themselves_are_refused_though_their_checksum_fits() {
    let good = snapshot();
    let forge = |change: &dyn Fn(&mut Vec<SequenceRecord>)| {
        let mut records = good.records.clone();
        change(&mut records);
        forged(records, good.shape, good.data.clone()).unwrap_err()
    };
    forged(good.records.clone(), good.shape, good.data.clone()).unwrap();
    let wrong = |error: SnapshotError, what: &str| {
        assert!(matches!(error, SnapshotError::Record { what: named, .. } if named == what), "{error}");
    };
    wrong(forge(&|records| records[0].len = 9), "the number of pages");
    wrong(forge(&|records| records[0].len = u32::MAX), "the length");
    wrong(forge(&|records| records[0].blocks[1] = Some(BlockId::of_pool(5))), "the number of a new page");
    wrong(forge(&|records| records[0].blocks[0] = Some(BlockId::MAX)), "the number of a new page");
    wrong(forge(&|records| records[1].blocks[1] = Some(BlockId::of_pool(0))), "the column of a shared page");
    wrong(forge(&|records| records[2].blocks[2] = None), "the column of a missing page");
    wrong(forge(&|records| records[0].tokens = Some(vec![1; 5])), "the number of tokens");
    let error = forge(&|records| records.truncate(2));
    assert!(matches!(error, SnapshotError::Data { given, needed } if given > needed), "{error}");
    let error = forge(&|records| records[0].len = 8);
    assert!(matches!(error, SnapshotError::Record { what: "the number of tokens", .. }), "{error}");

    let shaped = |change: &dyn Fn(&mut BlockShape)| {
        let mut shape = good.shape;
        change(&mut shape);
        forged(good.records.clone(), shape, good.data.clone()).unwrap_err()
    };
    for error in [shaped(&|shape| shape.block_size = 0), shaped(&|shape| shape.head_dim = 513)] {
        assert!(matches!(error, SnapshotError::Shape { .. }), "{error}");
    }
    let huge = shaped(&|shape| (shape.num_layers, shape.num_kv_heads) = (65_536, 65_536));
    assert!(matches!(huge, SnapshotError::Data { .. }), "{huge}");
}

#[test]
fn records_without_their_blocks_make_no_snapshot() {
    let held = blocks(4, &[1, 2]);
    let error = Snapshot::new(&[record(6, &[Some(1), Some(3)])], &held).unwrap_err();
    assert_eq!(error, SnapshotError::NotHeld { block: BlockId::of_pool(3) });
    let error = Snapshot::new(&[record(9, &[Some(1), Some(2)])], &held).unwrap_err();
    assert!(matches!(error, SnapshotError::Record { what: "the number of blocks", .. }), "{error}");
    // Blocks that were reserved behind the last token are no part of it.
    let roomy = Snapshot::new(&[record(3, &[Some(1), Some(7)])], &held).unwrap();
    assert_eq!(roomy.data_bytes(), 3 * roomy.shape().token_bytes());
}

#[test]
fn a_file_of_version_1_is_still_read() {
    let bytes = include_bytes!("../../../tests/golden/version_1.pagedkv");
    assert_eq!(Snapshot::from_bytes(bytes).unwrap(), snapshot());
    // Formats are numbered in files.
    for (number, format) in (0_u8..).zip(KvDtype::ALL) {
        assert_eq!(postcard::to_allocvec(&format).unwrap(), [number]);
    }
}
