//! Tiny Python packages, made by the suite, in a directory that pip takes for an index.

use std::fs;
use std::path::PathBuf;

use crate::case::{Checked, Failure};
use crate::host;

/// A directory of packages. It is removed with this.
pub(crate) struct Wheelhouse {
    directory: PathBuf,
}

impl Drop for Wheelhouse {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// One wheel: its name and version, and what it has.
pub(crate) struct Wheel<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    /// Requirements, as metadata have them.
    pub(crate) needs: &'a [&'a str],
    /// Path and content of files.
    pub(crate) files: &'a [(&'a str, &'a [u8])],
    /// A program and the function that it calls, as `module:function`.
    pub(crate) program: Option<(&'a str, &'a str)>,
}

impl Wheelhouse {
    pub(crate) fn new() -> Checked<Self> {
        let directory = std::env::temp_dir().join(host::token("wheels-"));
        fs::create_dir(&directory).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Self { directory })
    }

    pub(crate) fn path(&self) -> String {
        self.directory.to_string_lossy().into_owned()
    }

    /// Options for pip that make it look here and nowhere else.
    pub(crate) fn options(&self) -> Vec<String> {
        vec!["--no-index".to_owned(), format!("--find-links={}", self.path())]
    }

    fn write(&self, name: &str, content: Vec<u8>) -> Checked {
        fs::write(self.directory.join(name), content)
            .map_err(|error| Failure::new(error.to_string()))
    }

    /// A module of that name with a `VERSION`.
    pub(crate) fn module(&self, name: &str, version: &str, needs: &[&str]) -> Checked {
        let (path, text) = (format!("{name}.py"), format!("VERSION = {version:?}\n"));
        let files = [(path.as_str(), text.as_bytes())];
        self.wheel(&Wheel { name, version, needs, files: &files, program: None })
    }

    pub(crate) fn wheel(&self, wheel: &Wheel<'_>) -> Checked {
        let Wheel { name, version, needs, files, program } = wheel;
        let info = format!("{name}-{version}.dist-info");
        let needs: String = needs.iter().map(|need| format!("Requires-Dist: {need}\n")).collect();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}");
        let kind =
            "Wheel-Version: 1.0\nGenerator: suite\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        let mut all: Vec<(String, Vec<u8>)> =
            files.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect();
        all.push((format!("{info}/METADATA"), metadata.into_bytes()));
        all.push((format!("{info}/WHEEL"), kind.into()));
        if let Some((program, function)) = program {
            let text = format!("[console_scripts]\n{program} = {function}\n");
            all.push((format!("{info}/entry_points.txt"), text.into_bytes()));
        }
        let record = format!("{info}/RECORD");
        let mut lines: String = all.iter().map(|(path, _)| format!("{path},,\n")).collect();
        lines.push_str(&format!("{record},,\n"));
        all.push((record, lines.into_bytes()));
        self.write(&format!("{name}-{version}-py3-none-any.whl"), zip(&all))
    }

    /// A package that only has sources, whose build runs that code.
    pub(crate) fn sources(&self, name: &str, version: &str, setup: &str) -> Checked {
        let root = format!("{name}-{version}");
        let info = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        let files = [
            (format!("{root}/setup.py"), setup.as_bytes().to_vec()),
            (format!("{root}/PKG-INFO"), info.into_bytes()),
        ];
        self.write(&format!("{root}.zip"), zip(&files))
    }
}

/// A zip archive without compression.
fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let offset = archive.len() as u32;
        let mut common = Vec::new();
        // Version, flags, method; time and date; checksum, sizes, length of the name, no extra field.
        [20_u16, 0, 0, 0, 0x21].iter().for_each(|field| common.extend(field.to_le_bytes()));
        let size = content.len() as u32;
        [crc32(content), size, size].iter().for_each(|field| common.extend(field.to_le_bytes()));
        [name.len() as u16, 0].iter().for_each(|field| common.extend(field.to_le_bytes()));
        archive.extend(b"PK\x03\x04");
        archive.extend(&common);
        archive.extend(name.as_bytes());
        archive.extend(content);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        // No comment, the only disk, no internal attributes; mode of a file; where it is.
        directory.extend([0; 6]);
        directory.extend((0o100_644_u32 << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, length) = (archive.len() as u32, directory.len() as u32);
    let count = files.len() as u16;
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend(length.to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

fn crc32(data: &[u8]) -> u32 {
    let byte = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 }
        })
    };
    !data.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_zip() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
