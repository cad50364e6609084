//! Tape images in files: checked as a whole before anything is imported.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use base::buffer::Buf;
use base::int_cast::{to_u64, to_usize};
use cartridge::layout::{HEADER_LEN, RECORD_LEN_MAX, aligned};
use cartridge::tap::{TapForm, TapMark};

/// How much of an image is read for the marks: records that are longer are read past this buffer.
const READ_LEN: usize = 16 << 10;

/// An object of an image.
pub(super) enum ImageObject {
    Record(Buf),
    Filemark,
}

/// What an image holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) filemarks: u64,
    /// The bytes of all records.
    pub(super) bytes: u64,
    /// How much of a log the objects take without compression.
    pub(super) stored: u64,
}

/// An image that is read.
pub(super) struct Image {
    file: BufReader<File>,
    form: TapForm,
    /// Where the next mark is.
    at: u64,
}

impl Image {
    /// Opens an image and checks all of it. Without a form, tries SIMH and E11: a damaged image of these
    /// could look like one of TPC, which repeats no length.
    pub(super) fn open(path: &Path, form: Option<TapForm>) -> Result<(Self, Summary), String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        if !file.metadata().map_err(|error| error.to_string())?.is_file() {
            return Err("this is no file".to_owned());
        }
        let mut image = Self { file: BufReader::with_capacity(READ_LEN, file), form: TapForm::Simh, at: 0 };
        let forms = form.map_or(vec![TapForm::Simh, TapForm::E11], |form| vec![form]);
        let mut first = None;
        for form in forms {
            image.form = form;
            match image.check() {
                Ok(summary) => {
                    image.seek(0).map_err(|error| error.to_string())?;
                    return Ok((image, summary));
                }
                Err(why) => {
                    first.get_or_insert((form, why));
                }
            }
        }
        let (form, why) = first.unwrap_or((TapForm::Simh, String::new()));
        Err(format!("this is no tape image; as {} image: {why}", form.name()))
    }

    /// Returns the form of the image.
    pub(super) fn form(&self) -> TapForm {
        self.form
    }

    /// Reads the next object. A record is read into `spare`, if that is large enough.
    pub(super) fn next(&mut self, spare: Option<Buf>) -> Result<Option<ImageObject>, String> {
        let Some((mark, _)) = self.next_mark()? else { return Ok(None) };
        let TapMark::Record { len, .. } = mark else { return Ok(Some(ImageObject::Filemark)) };
        let large = spare.filter(|spare| spare.capacity() >= to_usize(len));
        let mut buf = large.unwrap_or_else(|| Buf::with_capacity(to_usize(len)));
        buf.truncate(0);
        let spare = buf.spare_mut().get_mut(..to_usize(len)).unwrap_or_default();
        self.file.read_exact(spare).map_err(|error| error.to_string())?;
        buf.advance(to_usize(len));
        self.skip_behind(len)?;
        Ok(Some(ImageObject::Record(buf)))
    }

    fn check(&mut self) -> Result<Summary, String> {
        self.seek(0).map_err(|error| error.to_string())?;
        let end = self.file.get_ref().metadata().map_err(|error| error.to_string())?.len();
        let mut summary = Summary::default();
        while let Some((mark, at)) = self.next_mark()? {
            let TapMark::Record { len, is_bad } = mark else {
                summary.filemarks += 1;
                summary.stored += HEADER_LEN;
                continue;
            };
            if is_bad {
                return Err(format!("the record at byte {at} is marked as read with an error"));
            }
            if to_usize(len) > RECORD_LEN_MAX {
                return Err(format!("the record at byte {at} has {len} bytes; at most 8 MiB are possible"));
            }
            if self.at.saturating_add(u64::from(len)) > end {
                return Err(format!("the record at byte {at} ends behind the end of the file"));
            }
            self.file.seek_relative(i64::from(len)).map_err(|error| error.to_string())?;
            self.skip_behind(len)?;
            summary.records += 1;
            summary.bytes += u64::from(len);
            summary.stored += aligned(HEADER_LEN + u64::from(len));
        }
        Ok(summary)
    }

    /// Reads the next mark that is an object. Returns it with its place, or nothing at the end of the medium.
    fn next_mark(&mut self) -> Result<Option<(TapMark, u64)>, String> {
        loop {
            let (at, len) = (self.at, self.form.mark_len());
            let mut bytes = [0; 4];
            match self.read_up_to(bytes.get_mut(..len).unwrap_or_default())? {
                0 => return Ok(None),
                read if read < len => return Err(format!("the file ends within the mark at byte {at}")),
                _ => {}
            }
            match self.form.mark(&bytes) {
                Some(TapMark::Gap) => {}
                Some(TapMark::EndOfMedium) | None => return Ok(None),
                Some(TapMark::Reserved(word)) => {
                    return Err(format!("the mark at byte {at} is {word:08x}h, which means nothing"));
                }
                Some(mark) => return Ok(Some((mark, at))),
            }
        }
    }

    /// Reads what follows the data of a record: padding, and the length once more.
    fn skip_behind(&mut self, len: u32) -> Result<(), String> {
        let (padding, at) = (self.form.padding(len), self.at);
        self.at += u64::from(len);
        let mut bytes = [0; 1];
        let padding = bytes.get_mut(..to_usize(padding)).unwrap_or_default();
        let missing = padding.len();
        if self.read_up_to(padding)? < missing {
            return Err(format!("the file ends behind the record at byte {at}"));
        }
        if self.form.has_trailer() {
            let mut trailer = [0; 4];
            if self.read_up_to(&mut trailer)? < trailer.len() {
                return Err(format!("the file ends behind the record at byte {at}"));
            }
            let found = self.form.mark(&trailer);
            if !matches!(found, Some(TapMark::Record { len: found, .. }) if found == len) {
                return Err(format!("the record at byte {at} has {len} bytes, and another length behind it"));
            }
        }
        Ok(())
    }

    fn seek(&mut self, at: u64) -> io::Result<()> {
        self.at = at;
        self.file.seek(SeekFrom::Start(at)).map(drop)
    }

    /// Reads until the buffer is full or the file ends. Returns how many bytes were read.
    fn read_up_to(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let mut done = 0;
        while let Some(room) = out.get_mut(done..).filter(|room| !room.is_empty()) {
            match self.file.read(room) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.at += to_u64(done);
        Ok(done)
    }
}
