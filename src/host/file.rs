//! Files that are written whole or not at all.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Links that lead to one another, at most, as on Linux.
const MAX_LINKS: u32 = 40;
const NOT_REGULAR: &str = "not a regular file; give the name of a file";

/// A file under a name of its own, which takes the place of another one once it is complete.
///
/// An older file stays as it is until [`commit`](Self::commit); dropped before, nothing is left behind.
///
/// ```
/// use std::io::Write;
/// use wgpu_paged_attention::host::AtomicFile;
///
/// # let directory = std::env::temp_dir().join(format!("atomic-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// let path = directory.join("report.json");
/// let mut file = AtomicFile::create(&path)?;
/// file.write_all(b"{}")?;
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"{}");
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    unfinished: PathBuf,
    writer: BufWriter<File>,
}

impl AtomicFile {
    /// Begins a file that is to be at `path`, or where the link there leads. It lies in the same directory, under a name
    /// that no file has.
    ///
    /// # Errors
    /// Of the kind [`InvalidInput`](io::ErrorKind::InvalidInput) where there is a directory, a device or anything but a
    /// regular file, or the name is a device's on this system, such as `NUL` on Windows;
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) where the file there is read-only; those of creating a file.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A link may lead to what has no name of its own, such as a pipe.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(unfit(NOT_REGULAR));
        }
        let path = followed(path)?;
        if holds_device_name(&path, std::env::consts::OS) {
            return Err(unfit(
                "not a regular file: Windows keeps this name for a device, whatever follows it; give another",
            ));
        }
        let permissions = match fs::metadata(&path) {
            Ok(found) if found.permissions().readonly() => {
                let problem = "the file is read-only; make it writable, or give another";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
            }
            Ok(found) if found.is_file() => Some(found.permissions()),
            Ok(_) => return Err(unfit(NOT_REGULAR)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        loop {
            // Every hasher starts from other random numbers.
            let unfinished = path.with_file_name(format!(".{:016x}.part", RandomState::new().hash_one(0)));
            match File::create_new(&unfinished) {
                Ok(file) => {
                    let unfinished = Self { path, unfinished, writer: BufWriter::new(file) };
                    // Before the first byte: what only its owner may read is never open to others.
                    if let Some(permissions) = permissions {
                        unfinished.writer.get_ref().set_permissions(permissions)?;
                    }
                    return Ok(unfinished);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where the file will be, links followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file in its place, with the permissions of an older one.
    ///
    /// # Errors
    /// Those of writing and renaming; an older file is then as before.
    pub fn commit(mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        fs::rename(&self.unfinished, &self.path)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // After a commit it is not there any more.
        let _ = fs::remove_file(&self.unfinished);
    }
}

fn unfit(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// Whether Windows takes a part of this path for a device, in any folder, case and extension. In a path that begins with
/// `\\?\` it makes a file instead, which its own tools cannot delete.
fn holds_device_name(path: &Path, os: &str) -> bool {
    let is_device = |name: &str| {
        let stem = name.split(['.', ':']).next().unwrap_or_default().trim_end_matches(' ').to_ascii_uppercase();
        let numbered = stem.strip_prefix("COM").or(stem.strip_prefix("LPT"));
        ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].contains(&&*stem)
            || numbered
                .is_some_and(|number| number.chars().count() == 1 && number.contains(|c| "123456789¹²³".contains(c)))
    };
    os == "windows" && path.iter().any(|part| part.to_str().is_some_and(is_device))
}

/// Where a path leads, also if nothing is there yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        // Such as /dev/stdout: a file that another program holds open, which a new one would not reach.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let is_in = |root: &str| fs::canonicalize(parent).is_ok_and(|parent| parent.starts_with(root));
        if is_in("/proc") || is_in("/dev") && !is_in("/dev/shm") {
            return Err(unfit(NOT_REGULAR));
        }
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) if path.file_name().is_none() => {
                return Err(unfit("no file has this name; give the name of a file"));
            }
            Err(_) => return Ok(path),
        }
    }
    Err(unfit("the links lead to no file; give the name of a file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_no_files_on_windows() {
        let windows = |path: &str| holds_device_name(Path::new(path), "windows");
        for device in ["NUL", "nul.json", "out/Con", "AUX.tar.gz", "prn ", "com1", "LPT9.csv", "COM².txt", "nul/a.json"]
        {
            assert!(windows(device) && !holds_device_name(Path::new(device), "linux"), "{device}");
        }
        for file in ["null.json", "out/icon", "com", "com0", "com10", "lpt.csv", "a.nul", "auxiliary/result.json"] {
            assert!(!windows(file), "{file}");
        }
        // As this system says it.
        let made = AtomicFile::create(&std::env::temp_dir().join("NUL.paged"));
        assert_eq!(made.is_err(), cfg!(windows));
    }
}
