//! A reader of the zip archives that TorchScript is kept in: directory, stored and deflated entries, the large form
//! (zip64). It follows the format's own description, believes no number before it was compared with the file, and
//! unpacks nothing that nobody asked for.

use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::borrow::Cow;
use std::io::Read as _;

/// Far more than any model has.
const ENTRIES: usize = 200_000;
/// A comment may stand behind the end record.
const COMMENT: usize = 0xffff;
const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const LARGE_END: &[u8] = b"PK\x06\x06";
const LARGE_LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const DIRECTORY: &[u8] = b"PK\x01\x02";
const DIRECTORY_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
/// The extra field with sizes of 64 bits.
const LARGE_EXTRA: u64 = 1;
/// What stands in a field of 32 bits whose value is in that extra field.
const ELSEWHERE: u64 = 0xffff_ffff;

/// An archive and what is in it.
pub(super) struct Archive<'a> {
    file: &'a [u8],
    pub(super) entries: Vec<Entry>,
}

/// A file in an archive.
pub(super) struct Entry {
    pub(super) name: String,
    method: u64,
    crc: u32,
    packed: u64,
    /// Unpacked.
    pub(super) bytes: u64,
    offset: u64,
}

type Problem = String;

fn damaged() -> Problem {
    "it is no zip archive, or damaged".to_owned()
}

/// A number of so many bytes, the least first.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn place(value: u64) -> Option<usize> {
    usize::try_from(value).ok()
}

impl<'a> Archive<'a> {
    pub(super) fn read(file: &'a [u8]) -> Result<Self, Problem> {
        let (count, start) = end(file).ok_or_else(damaged)?;
        if count > ENTRIES {
            return Err(format!("its archive has {count} entries, more than any model"));
        }
        let mut entries = Vec::new();
        let mut at = start;
        for _ in 0..count {
            let (entry, next) = entry(file, at).ok_or_else(damaged)?;
            entries.push(entry);
            at = next;
        }
        Ok(Self { file, entries })
    }

    /// What is in an entry. More than `most` is an error, whatever the directory says of it.
    pub(super) fn content(&self, entry: &Entry, most: u64) -> Result<Cow<'a, [u8]>, Problem> {
        let Entry { name, bytes, .. } = entry;
        if *bytes > most {
            return Err(format!("{name} in it has {bytes} bytes; at most {most} are read"));
        }
        let packed = self.packed(entry).ok_or_else(damaged)?;
        let content = match entry.method {
            0 => Cow::Borrowed(packed),
            8 => {
                let mut content = Vec::new();
                let unpacked = DeflateDecoder::new(packed).take(bytes + 1).read_to_end(&mut content);
                unpacked.map_err(|_| format!("{name} in it cannot be unpacked; the file is damaged"))?;
                Cow::Owned(content)
            }
            other => return Err(format!("{name} in it is packed in a way ({other}) that no model is")),
        };
        let mut crc = Crc::new();
        crc.update(&content);
        if content.len() as u64 != *bytes || crc.sum() != entry.crc {
            return Err(format!("{name} in it is damaged (its checksum is another)"));
        }
        Ok(content)
    }

    fn packed(&self, entry: &Entry) -> Option<&'a [u8]> {
        let header = self.file.get(place(entry.offset)?..)?;
        header.starts_with(LOCAL).then_some(())?;
        let names = place(number(header, 26, 2)? + number(header, 28, 2)?)?;
        header.get(LOCAL_BYTES + names..)?.get(..place(entry.packed)?)
    }
}

/// How many entries there are, and where their directory begins.
fn end(file: &[u8]) -> Option<(usize, usize)> {
    let from = file.len().checked_sub(END_BYTES)?;
    let least = from.saturating_sub(COMMENT);
    let at = (least..=from).rev().find(|at| file[*at..].starts_with(END))?;
    let (count, start) = (number(file, at + 10, 2)?, number(file, at + 16, 4)?);
    if count < 0xffff && start < ELSEWHERE {
        return Some((place(count)?, place(start)?));
    }
    let locator = file.get(at.checked_sub(LOCATOR_BYTES)?..)?;
    locator.starts_with(LARGE_LOCATOR).then_some(())?;
    let end = file.get(place(number(locator, 8, 8)?)?..)?;
    end.starts_with(LARGE_END).then_some(())?;
    Some((place(number(end, 32, 8)?)?, place(number(end, 48, 8)?)?))
}

/// The directory's entry at a place, and where the next one is.
fn entry(file: &[u8], at: usize) -> Option<(Entry, usize)> {
    let header = file.get(at..)?;
    header.starts_with(DIRECTORY).then_some(())?;
    let length = |at| place(number(header, at, 2)?);
    let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
    let names = header.get(DIRECTORY_BYTES..)?;
    let mut entry = Entry {
        name: String::from_utf8(names.get(..name)?.to_vec()).ok()?,
        method: number(header, 10, 2)?,
        crc: u32::try_from(number(header, 16, 4)?).ok()?,
        packed: number(header, 20, 4)?,
        bytes: number(header, 24, 4)?,
        offset: number(header, 42, 4)?,
    };
    large(names.get(name..name + extra)?, &mut entry)?;
    Some((entry, at + DIRECTORY_BYTES + name + extra + comment))
}

/// Sizes that did not fit stand behind the name, in the order of the fields that they are too large for.
fn large(mut extra: &[u8], entry: &mut Entry) -> Option<()> {
    while !extra.is_empty() {
        let (kind, length) = (number(extra, 0, 2)?, place(number(extra, 2, 2)?)?);
        let field = extra.get(4..4 + length)?;
        extra = &extra[4 + length..];
        if kind != LARGE_EXTRA {
            continue;
        }
        let mut at = 0;
        for value in [&mut entry.bytes, &mut entry.packed, &mut entry.offset] {
            if *value == ELSEWHERE {
                *value = number(field, at, 8)?;
                at += 8;
            }
        }
    }
    Some(())
}
