//! Reports as text that machines read.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A header made of the rows' field names, and a line for each row.
///
/// # Errors
/// If a row is not flat: a field is a list or a map.
pub(crate) fn to_csv(rows: impl IntoIterator<Item: Serialize>) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    // Only text goes in.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A report as indented JSON.
///
/// # Errors
/// If a number is not finite: it is written as null without complaint, and would be noticed only by whoever reads it.
pub(crate) fn to_json<T: Serialize + DeserializeOwned>(report: &T) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string_pretty(report)?;
    serde_json::from_str::<T>(&json)?;
    Ok(json + "\n")
}
