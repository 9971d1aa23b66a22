//! What comes out of archives, whole, cut, hostile and damaged.

use proptest::prelude::*;

use super::super::{END, encode};
use super::*;
use crate::ErrorKind;

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: path.into(), kind, mode: 0o644, modified: 1 }
}

fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (entry, content) in entries {
        out.extend(encode(entry));
        out.extend_from_slice(content);
        out.resize(out.len() + padding(content.len() as u64), 0);
    }
    out.extend(END);
    out
}

fn decode(bytes: &[u8], piece: usize) -> Result<Vec<Item>> {
    let mut decoder = Decoder::default();
    let mut items = Vec::new();
    for chunk in bytes.chunks(piece.max(1)) {
        decoder.feed(Bytes::copy_from_slice(chunk));
        while let Some(item) = decoder.next()? {
            match (items.last_mut(), item) {
                (Some(Item::Data(before)), Item::Data(more)) => {
                    *before = [&before[..], &more[..]].concat().into();
                }
                (_, item) => items.push(item),
            }
        }
    }
    decoder.finish()?;
    Ok(items)
}

fn problem(bytes: &[u8]) -> String {
    let error = decode(bytes, 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    error.to_string()
}

/// A header that no honest program writes.
fn raw(name: &[u8], kind: EntryType, size: u64, link: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o6777);
    header.set_mtime(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.resize(BLOCK + size.next_multiple_of(512) as usize, b'x');
    out.extend(END);
    out
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["/etc/passwd", "../x", "a/../../x", "a/..", ".."] {
        let text = problem(&raw(name.as_bytes(), EntryType::Regular, 0, b""));
        assert!(text.contains("absolute") || text.contains("leads out"), "{name}: {text}");
    }
    let deep = vec![b"d".as_slice(); 65].join(&b'/');
    assert!(
        problem(&archive(&[(Entry { path: deep, ..entry("", EntryKind::Directory) }, b"")]))
            .contains("64")
    );
    let long = "n".repeat(256);
    assert!(problem(&archive(&[(entry(&long, EntryKind::Directory), b"")])).contains("too long"));
}

#[test]
fn what_is_no_file_is_refused() {
    for (kind, what) in [
        (EntryType::Fifo, "FIFO"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::GNUSparse, "sparse"),
        (EntryType::new(b'Z'), "not known"),
    ] {
        let text = problem(&raw(b"x", kind, 0, b""));
        assert!(text.contains(what), "{text}");
    }
    assert!(problem(&raw(b"x", EntryType::Symlink, 512, b"y")).contains("content"));
    assert!(problem(&raw(b"x", EntryType::Link, 0, b"/etc/passwd")).contains("absolute"));
    assert!(problem(&raw(b"x", EntryType::Link, 0, b"../y")).contains("leads out"));
}

#[test]
fn attributes_override_names_and_are_checked_too() {
    let value = b"16 path=../../x\n";
    let mut bytes = raw(b"pax", EntryType::XHeader, value.len() as u64, b"");
    bytes.truncate(BLOCK);
    bytes.extend(value);
    bytes.resize(2 * BLOCK, 0);
    bytes.extend(raw(b"harmless", EntryType::Regular, 0, b""));
    assert!(problem(&bytes).contains("leads out"));
    let huge = raw(b"././@LongLink", EntryType::GNULongName, 1 << 30, b"");
    assert!(problem(&huge[..BLOCK]).contains("too long"));
}

#[test]
fn bits_that_change_the_user_are_dropped() {
    let items = decode(&raw(b"x", EntryType::Regular, 0, b""), 4096).unwrap();
    assert!(matches!(&items[0], Item::Entry(entry) if entry.mode == 0o755), "{items:?}");
}

#[test]
fn what_is_no_archive_is_told() {
    assert!(problem(b"").contains("empty"));
    assert!(problem(&[b'x'; 512]).contains("no tar"));
    assert!(problem(&[b'x'; 100]).contains("cut off"));
    assert!(problem(&[&[0x1f, 0x8b][..], &[8; 510]].concat()).contains("compressed"));
    assert_eq!(decode(&END, 4096).unwrap(), []);
    let mut twice = archive(&[(entry("a", EntryKind::File(0)), b"")]);
    twice.extend(twice.clone());
    assert!(problem(&twice).contains("after its end"));
}

proptest! {
    #[test]
    fn what_is_packed_comes_out(
        path in "[a-zé/]{0,300}[a-z]",
        target in "[a-z/.]{1,200}",
        content: Vec<u8>,
        piece in 1usize..2000,
    ) {
        let path = path.trim_start_matches('/').split('/').filter(|p| !p.is_empty()).collect::<Vec<_>>();
        prop_assume!(path.len() <= 64 && path.iter().all(|p| p.len() <= 255));
        let file = entry(&path.join("/"), EntryKind::File(content.len() as u64));
        let link = entry("link", EntryKind::Symlink(target.into()));
        let bytes = archive(&[(file.clone(), &content), (link.clone(), b"")]);
        let mut expected = vec![Item::Entry(file)];
        if !content.is_empty() {
            expected.push(Item::Data(content.into()));
        }
        expected.extend([Item::FileEnd, Item::Entry(link)]);
        prop_assert_eq!(decode(&bytes, piece).unwrap(), expected);
    }

    #[test]
    fn a_cut_archive_is_never_complete(content: Vec<u8>, cut: prop::sample::Index) {
        let file = entry("a", EntryKind::File(content.len() as u64));
        let bytes = archive(&[(file, &content)]);
        let end = bytes.len() - END.len();
        prop_assert!(decode(&bytes[..cut.index(end + 1)], 100).is_err());
    }

    #[test]
    fn damage_is_an_error_or_another_archive(bytes: Vec<u8>, place: prop::sample::Index) {
        let mut archive = archive(&[(entry("a", EntryKind::File(3)), b"abc")]);
        let place = place.index(archive.len());
        for (old, new) in archive[place..].iter_mut().zip(&bytes) {
            *old = *new;
        }
        let _ = decode(&archive, 77);
        let _ = decode(&bytes, 77);
    }
}
