//! What the commands report: as JSON and CSV for machines, as a page of facts, plots and tables for people.
//!
//! Fields are added to the JSON, never renamed or dropped, within one [`SCHEMA`].

pub mod fmt;
mod table;
pub use table::Table;

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wgpu_paged_attention::testkit::{Gpu, describe_driver};

pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub schema: u32,
    /// The command. Reports of the first version were of `bench` and did not say so.
    #[serde(default = "bench")]
    pub kind: String,
    #[serde(default = "unknown")]
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

fn bench() -> String {
    "bench".to_owned()
}

fn unknown() -> String {
    "unknown".to_owned()
}

impl Head {
    pub fn new(kind: &str, command: Option<String>, seed: Option<u64>) -> Self {
        Self { schema: SCHEMA, kind: kind.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), command, seed }
    }
}

/// A header made of the rows' field names, and a line for each row.
pub(crate) fn to_csv(rows: impl IntoIterator<Item: Serialize>) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    text(writer)
}

/// A header, and of each row the fields that `columns` names: `requests,decode_us=decode.median_us`, where a path is
/// given if it is another than the column's name. What is not there is empty; without rows there is no header.
pub(crate) fn select_csv(columns: &str, rows: impl IntoIterator<Item: Serialize>) -> Result<String, csv::Error> {
    let rows = rows.into_iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>().map_err(io::Error::from)?;
    let columns: Vec<_> = columns.split(',').map(|name| name.split_once('=').unwrap_or((name, name))).collect();
    let cell = |row: &Value, path: &str| match path.split('.').try_fold(row, |value, name| value.get(name)) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let header = rows.iter().take(1).map(|_| columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    records_csv(header.chain(rows.iter().map(|row| columns.iter().map(|(_, path)| cell(row, path)).collect())))
}

pub(crate) fn records_csv(records: impl IntoIterator<Item: IntoIterator<Item = String>>) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    records.into_iter().try_for_each(|record| writer.write_record(record.into_iter().map(String::into_bytes)))?;
    text(writer)
}

fn text(writer: csv::Writer<Vec<u8>>) -> Result<String, csv::Error> {
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    // Only text goes in.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A report as indented JSON. A number that is not finite is refused: serde writes null, which only a reader would notice.
pub(crate) fn to_json<T: Serialize + DeserializeOwned>(report: &T) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string_pretty(report)?;
    serde_json::from_str::<T>(&json)?;
    Ok(json + "\n")
}

const SOFTWARE_NOTICE: &str = "SOFTWARE ADAPTER: these are CPU numbers, not a GPU's";

/// The version of wgpu that this program is built for; Cargo.lock holds the exact one.
const WGPU_VERSION: &str = "30.0";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    pub name: String,
    pub backend: String,
    pub driver: String,
    pub software: bool,
    /// Discrete, integrated, virtual or CPU, in wgpu's words.
    pub device_type: String,
    pub wgpu_version: String,
}

impl Adapter {
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            name: gpu.info.name.clone(),
            backend: gpu.info.backend.to_string(),
            driver: describe_driver(&gpu.info),
            software: gpu.is_software(),
            device_type: format!("{:?}", gpu.info.device_type),
            wgpu_version: WGPU_VERSION.to_owned(),
        }
    }

    pub fn fact(&self) -> (&'static str, String) {
        let Self { name, backend, driver, device_type, wgpu_version, .. } = self;
        let value = format!("{name} ({device_type}) | backend: {backend} | driver: {driver} | wgpu {wgpu_version}");
        ("adapter", value)
    }

    pub fn notice(&self) -> Option<String> {
        self.software.then(|| SOFTWARE_NOTICE.to_owned())
    }
}
