//! From and to bytes.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Snapshot, SnapshotError, check};
use crate::blocks::{BlockId, Domain, Rank, SequenceRecord};
use crate::host::{AtomicFile, BlockShape};

/// How every snapshot begins.
pub const MAGIC: [u8; 8] = *b"pagedkv\n";
/// The version that is written, and the latest that is read.
pub const VERSION: u32 = 1;

/// Magic, version and two lengths.
const PREFIX_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 32;
/// More than the tokens of any batch take; a decoded header takes some times as much.
const MAX_HEADER_BYTES: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    shape: BlockShape,
    records: Vec<Record>,
}

/// A [`SequenceRecord`] of one group of layers, as this version has it.
#[derive(Serialize, Deserialize)]
struct Record {
    len: u32,
    blocks: Vec<Option<BlockId>>,
    tokens: Option<Vec<u32>>,
    domain: Option<Domain>,
    rank: Rank,
}

impl From<&SequenceRecord> for Record {
    fn from(record: &SequenceRecord) -> Self {
        let SequenceRecord { len, blocks, other_groups: _, tokens, domain, rank } = record.clone();
        Self { len, blocks, tokens, domain, rank }
    }
}

impl From<Record> for SequenceRecord {
    fn from(Record { len, blocks, tokens, domain, rank }: Record) -> Self {
        Self { len, blocks, other_groups: Vec::new(), tokens, domain, rank }
    }
}

impl Snapshot {
    /// Writes the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::Io`], [`SnapshotError::TooLarge`] for more sequences and tokens than a header holds.
    pub fn write(&self, mut writer: impl Write) -> Result<(), SnapshotError> {
        let header = postcard::to_allocvec(&Header {
            shape: self.shape,
            records: self.records.iter().map(Record::from).collect(),
        })
        .map_err(|error| SnapshotError::Header { message: error.to_string() })?;
        let header_len = header.len() as u64;
        if header_len > MAX_HEADER_BYTES {
            return Err(SnapshotError::TooLarge { part: "header", bytes: header_len, limit: MAX_HEADER_BYTES });
        }
        let mut prefix = Vec::with_capacity(PREFIX_BYTES);
        prefix.extend_from_slice(&MAGIC);
        prefix.extend_from_slice(&VERSION.to_le_bytes());
        prefix.extend_from_slice(&(header.len() as u32).to_le_bytes());
        prefix.extend_from_slice(&self.data_bytes().to_le_bytes());
        let mut hash = Sha256::new();
        for part in [&prefix, &header, &self.data] {
            hash.update(part);
            writer.write_all(part).map_err(SnapshotError::io("write"))?;
        }
        writer.write_all(&hash.finalize()).map_err(SnapshotError::io("write"))?;
        writer.flush().map_err(SnapshotError::io("write"))
    }

    /// The snapshot as bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a file; an older one stays until the new one is complete. See [`AtomicFile`].
    pub fn save(&self, path: &Path) -> Result<(), SnapshotError> {
        let mut file = AtomicFile::create(path).map_err(SnapshotError::io("create"))?;
        self.write(&mut file)?;
        file.commit().map_err(SnapshotError::io("write"))
    }

    /// Reads a snapshot of at most `max_bytes` to its end, which is the end of the reader.
    ///
    /// # Errors
    /// [`SnapshotError`]; whatever the bytes are, no more memory is taken than they have, and some times as much for the
    /// header.
    pub fn read(mut reader: impl Read, max_bytes: u64) -> Result<Self, SnapshotError> {
        let prefix = take_at_most(&mut reader, PREFIX_BYTES as u64)?;
        let found = &prefix[..prefix.len().min(MAGIC.len())];
        if found.is_empty() || found != &MAGIC[..found.len()] {
            return Err(SnapshotError::NotASnapshot { found: found.to_vec(), expected: MAGIC });
        }
        if prefix.len() < PREFIX_BYTES {
            let given = prefix.len() as u64;
            return Err(SnapshotError::Truncated { part: "prefix", needed: PREFIX_BYTES as u64, given });
        }
        let number = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let version = number(8);
        if version == 0 || version > VERSION {
            return Err(SnapshotError::Version { found: version, supported: VERSION });
        }
        let header_len = u64::from(number(12));
        let data_len = u64::from(number(16)) | u64::from(number(20)) << 32;
        let around = (PREFIX_BYTES + CHECKSUM_BYTES) as u64;
        for (part, bytes, limit) in [
            ("header", header_len, MAX_HEADER_BYTES.min(max_bytes.saturating_sub(around))),
            ("data", data_len, max_bytes.saturating_sub(around + header_len)),
        ] {
            if bytes > limit {
                return Err(SnapshotError::TooLarge { part, bytes, limit });
            }
        }
        let header = take(&mut reader, "header", header_len)?;
        let data = take(&mut reader, "data", data_len)?;
        let checksum = take(&mut reader, "checksum", CHECKSUM_BYTES as u64)?;
        let mut hash = Sha256::new();
        [&prefix, &header, &data].into_iter().for_each(|part| hash.update(part));
        if hash.finalize()[..] != checksum[..] {
            return Err(SnapshotError::Checksum);
        }
        if !take_at_most(&mut reader, 1)?.is_empty() {
            return Err(SnapshotError::Trailing);
        }
        Self::decode(&header, data)
    }

    /// Reads a snapshot from bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::read(bytes, bytes.len() as u64)
    }

    /// Reads a file of at most `max_bytes`.
    pub fn load(path: &Path, max_bytes: u64) -> Result<Self, SnapshotError> {
        let file = File::open(path).map_err(SnapshotError::io("open"))?;
        Self::read(BufReader::new(file), max_bytes)
    }

    fn decode(header: &[u8], data: Vec<u8>) -> Result<Self, SnapshotError> {
        let decoded = postcard::take_from_bytes::<Header>(header);
        let (Header { shape, records }, rest) =
            decoded.map_err(|error| SnapshotError::Header { message: error.to_string() })?;
        if !rest.is_empty() {
            return Err(SnapshotError::Header { message: format!("{} bytes too many", rest.len()) });
        }
        let records: Vec<SequenceRecord> = records.into_iter().map(SequenceRecord::from).collect();
        check::check_shape(&shape)?;
        let mut pages = check::pages(&records, &shape)?;
        let needed = check::place_pages(&mut pages, &shape)?;
        if needed != data.len() {
            return Err(SnapshotError::Data { given: data.len() as u64, needed: needed as u64 });
        }
        Ok(Self { shape, records, pages, data })
    }
}

/// The next `len` bytes. Memory grows as they come, for a length may be a lie.
fn take(reader: &mut impl Read, part: &'static str, len: u64) -> Result<Vec<u8>, SnapshotError> {
    let bytes = take_at_most(reader, len)?;
    let given = bytes.len() as u64;
    if given < len {
        return Err(SnapshotError::Truncated { part, needed: len, given });
    }
    Ok(bytes)
}

fn take_at_most(reader: &mut impl Read, len: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    reader.by_ref().take(len).read_to_end(&mut bytes).map_err(|error| match error.kind() {
        ErrorKind::OutOfMemory => SnapshotError::HostMemory { bytes: len },
        _ => SnapshotError::io("read")(error),
    })?;
    Ok(bytes)
}
