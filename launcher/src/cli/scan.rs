//! Splits words into commands and options by the table of options. Values stay as typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::vec;

use super::configfile::{self, Spot, Word};
use super::error::{CALLED, UsageError};
use super::foreign;
use super::help::Length;
use super::options::{self, Id, Mode, Spec};
use super::text::shown;
use super::values::split_at_equals;
use crate::plan::request::TypedAt;

/// The words between two `:`, or one line of a configfile.
#[derive(Debug)]
pub(super) struct Segment {
    /// The place of its first word, or of an adjacent `:` if it is empty.
    pub(super) place: TypedAt,
    pub(super) items: Vec<Item>,
    /// Never empty.
    pub(super) program: Option<OsString>,
    pub(super) args: Vec<OsString>,
}

/// An option as typed.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) spec: &'static Spec,
    /// The name as typed, dashes included.
    pub(super) typed: String,
    /// One for each of the spec's values, or `NAME=VALUE` for two; then the optional value, if typed.
    pub(super) values: Vec<OsString>,
    pub(super) place: TypedAt,
}

impl Item {
    /// Returns the value of this index, or an empty one.
    pub(super) fn value(&self, index: usize) -> &OsStr {
        self.values.get(index).map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// Returns an error whose text begins with the option.
    pub(super) fn error(&self, text: impl Fn(&str) -> String, hint: impl Into<String>) -> UsageError {
        UsageError::new(&self.place, text(&format!("option '{}'", self.typed)), hint)
    }
}

/// Why a scan stopped early.
pub(super) enum Stop {
    Help(Length),
    Version,
    Error(UsageError),
}

impl From<UsageError> for Stop {
    fn from(error: UsageError) -> Self {
        Self::Error(error)
    }
}

/// Scans the words of a command line. Returns its commands, at least one.
pub(super) fn command_line(args: Vec<OsString>) -> Result<Vec<Segment>, Stop> {
    let words = args.into_iter().map(|text| Word { text, quoted: false, spot: None }).collect();
    let mut segments = Vec::new();
    scan(None, words, &mut segments)?;
    Ok(segments)
}

/// Scans the bytes of a configfile.
pub(super) fn file(path: &Path, bytes: &[u8]) -> Result<Vec<Segment>, UsageError> {
    let lines = configfile::lines(bytes).map_err(|(spot, problem)| {
        UsageError::new(&place_in(Some(path), Some(spot)), problem.to_string(), problem.hint())
    })?;
    let mut segments = Vec::new();
    for line in lines {
        match scan(Some(path), line, &mut segments) {
            Err(Stop::Error(error)) => return Err(error),
            // Help and version are refused in a file.
            Ok(()) | Err(Stop::Help(_) | Stop::Version) => {}
        }
    }
    Ok(segments)
}

fn place_in(path: Option<&Path>, spot: Option<Spot>) -> TypedAt {
    match (path, spot) {
        (Some(path), Some(Spot { line, column })) => TypedAt::File { path: path.into(), line, column },
        _ => TypedAt::CommandLine,
    }
}

/// Scans the commands between separators.
fn scan(path: Option<&Path>, words: Vec<Word>, segments: &mut Vec<Segment>) -> Result<(), Stop> {
    let separators = words.iter().filter(|word| word.is_separator()).count();
    // If the last command is empty, its place is that of the separator before it.
    let last = words.last().and_then(|word| word.spot);
    let mut words = words.into_iter();
    for _ in 0..=separators {
        let place = place_in(path, words.as_slice().first().map_or(last, |word| word.spot));
        let own: Vec<_> = words.by_ref().take_while(|word| !word.is_separator()).collect();
        segments.push(Scanner { path, words: own.into_iter() }.segment(place)?);
    }
    Ok(())
}

/// The words of one command.
struct Scanner<'a> {
    path: Option<&'a Path>,
    words: vec::IntoIter<Word>,
}

impl Scanner<'_> {
    fn segment(mut self, place: TypedAt) -> Result<Segment, Stop> {
        let mut items = Vec::new();
        while let Some(mut word) = self.words.next() {
            if word.text == "--" {
                let Some(program) = self.words.next() else { break };
                word = program;
            } else if is_option(&word.text) {
                self.option(word, &mut items)?;
                continue;
            }
            if word.text.is_empty() {
                let (place, hint) = (place_in(self.path, word.spot), "a variable on the command line may be unset");
                return Err(UsageError::new(&place, "the program's name is empty", hint).into());
            }
            let args = self.words.map(|word| word.text).collect();
            return Ok(Segment { place, items, program: Some(word.text), args });
        }
        Ok(Segment { place, items, program: None, args: Vec::new() })
    }

    /// Scans one option with its values.
    fn option(&mut self, word: Word, items: &mut Vec<Item>) -> Result<(), Stop> {
        let place = place_in(self.path, word.spot);
        let (typed, glued) = match split_at_equals(&word.text) {
            Some((name, value)) => (name, Some(value)),
            None => (word.text, None),
        };
        let bytes = typed.as_bytes();
        let dashes = if bytes.starts_with(b"--") { 2 } else { 1 };
        let name = OsStr::from_bytes(&bytes[dashes..]).to_str().unwrap_or_default().to_owned();
        let typed = shown(&typed);

        if let Some(spec) = options::find(&name) {
            match spec.id {
                _ if self.path.is_some() && spec.is_of_the_command_line() => {
                    let text = format!("option '{typed}' is not allowed in a configfile");
                    return Err(UsageError::new(&place, text, "put it on the command line").into());
                }
                Id::Mode(Mode::Help) if name == "h" => return Err(Stop::Help(Length::Screen)),
                Id::Mode(Mode::Help) => return Err(Stop::Help(Length::Full)),
                Id::Mode(Mode::Version) => return Err(Stop::Version),
                Id::Mode(Mode::ConfigFile | Mode::Demo | Mode::Calibrate) | Id::Local(_) | Id::Global(_) => {}
            }
            let values = self.values(spec, &typed, glued, &place)?;
            items.push(Item { spec, typed, values, place });
            return Ok(());
        }
        if dashes == 1 && glued.is_none() {
            if let Some((spec, number)) = options::find_with_number(&name) {
                let values = vec![number.into()];
                let typed = typed.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
                items.push(Item { spec, typed, values, place });
                return Ok(());
            }
            if let Some(spec) = repeated_letter(&name) {
                items.extend(name.chars().take(usize::from(u8::MAX)).map(|_| Item {
                    spec,
                    typed: typed.clone(),
                    values: Vec::new(),
                    place: place.clone(),
                }));
                return Ok(());
            }
        }
        Err(unknown(&place, &typed, &name, dashes).into())
    }

    /// Scans the values of an option: the value after `=` first, then the words that follow. A word that names an
    /// option is no value (`-wdir -np 4` lacks one), except as the value of a variable.
    fn values(
        &mut self,
        spec: &Spec,
        typed: &str,
        glued: Option<OsString>,
        place: &TypedAt,
    ) -> Result<Vec<OsString>, UsageError> {
        if let Some(optional) = &spec.optional {
            let follows = |word: &&Word| looks_like(&word.text, optional.ending);
            return Ok(match (glued, self.words.as_slice().first().filter(follows)) {
                (Some(value), _) => vec![value],
                (None, Some(_)) => self.words.next().map(|word| word.text).into_iter().collect(),
                (None, None) => Vec::new(),
            });
        }
        if let (Some(value), true) = (&glued, spec.values.is_empty()) {
            let text = format!("option '{typed}' takes no value, and was given '{}'", shown(value));
            return Err(UsageError::new(place, text, format!("write '{typed}' alone")));
        }
        // Intel MPI's -trace takes no value: the next word may be the program, which a trace must not replace.
        let fits = |word: &Word, name: &str| match name.strip_prefix("FILE") {
            Some(ending) if !ending.is_empty() => looks_like(&word.text, ending),
            _ => spec.values.len() > 1 || !names_option(&word.text),
        };
        let mut values: Vec<_> = glued.into_iter().collect();
        while values.len() < spec.values.len() {
            if values.first().is_some_and(|first| first.as_bytes().contains(&b'=')) {
                break; // NAME=VALUE
            }
            match self.words.as_slice().first() {
                Some(word) if fits(word, spec.values[values.len()]) => {
                    values.extend(self.words.next().map(|word| word.text));
                }
                _ => {
                    let text = format!("option '{typed}' needs a value: {typed} {}", spec.values.join(" "));
                    let hint = match spec.values[values.len()].strip_prefix("FILE") {
                        Some(ending) if !ending.is_empty() => {
                            format!("a name that does not end in '{ending}' must follow '=': {typed}=FILE")
                        }
                        _ if spec.id == Id::Mode(Mode::Calibrate) => {
                            format!("name hosts: {CALLED} {typed} 'node[001-032]'")
                        }
                        _ => format!(
                            "'{CALLED} --help' describes it; write a ':' or an option's name as a value after '='"
                        ),
                    };
                    return Err(UsageError::new(place, text, hint));
                }
            }
        }
        Ok(values)
    }
}

/// Returns whether a word is an option rather than a program. `-` alone is a program.
fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes().starts_with(b"-")
}

/// Returns whether a word has this ending and is not an option.
fn looks_like(word: &OsStr, ending: &str) -> bool {
    word.as_bytes().ends_with(ending.as_bytes()) && !is_option(word)
}

/// Returns whether a word is the name of an option, with its dashes.
fn names_option(word: &OsStr) -> bool {
    let name = word.to_str().and_then(|word| word.strip_prefix("--").or_else(|| word.strip_prefix('-')));
    name.is_some_and(|name| options::find(name).is_some())
}

/// Returns the option `-v` for words such as `vvv`.
fn repeated_letter(name: &str) -> Option<&'static Spec> {
    let repeated = !name.is_empty() && name.bytes().all(|byte| byte == b'v');
    if repeated { options::find("v") } else { None }
}

/// Returns the error for an unknown option.
fn unknown(place: &TypedAt, typed: &str, name: &str, dashes: usize) -> UsageError {
    let lists = format!("'{CALLED} --help' lists all options");
    if name == "pmi_args" {
        let text = format!("'{typed}' comes from an MPI program that was started without a launcher");
        let hint = "start that program with 'scela-run -np 1 PROGRAM'; a launcher cannot be added later";
        return UsageError::new(place, text, hint);
    }
    if let Some(foreign::Foreign { purpose, instead, .. }) = foreign::find(name) {
        let text = format!("scela-run has no option '{typed}', which in other launchers {purpose}");
        let advice = instead.map_or("remove it".to_owned(), |instead| format!("use '{instead}'"));
        return UsageError::new(place, text, format!("{advice}; {lists}"));
    }
    let hint = match options::nearest(name) {
        Some(near) => format!("did you mean '{}{near}'? {lists}", &"--"[..dashes]),
        None => format!("{lists}; options of the program go after its name"),
    };
    UsageError::new(place, format!("there is no option '{typed}'"), hint)
}
