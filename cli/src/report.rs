//! Reports as text that machines read, and how it gets into a file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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

/// Puts `text` in the place of a file, which is at all times either the old one or the new one, whole.
///
/// # Errors
/// What the operating system says; the file is then as it was, and nothing else is left.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temporary = temporary_path(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        // Or the rename may reach the disk before the content does.
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // What is left of the attempt is of no use; that it cannot be removed would not be worth another error.
        let _ = fs::remove_file(&temporary);
    })
}

/// Where the text lies until it is whole: beside the file, with `.tmp` after its name.
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}
