//! Numbers of devices of a kind, as hosts files and `--gres` write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::core::limits::{DEVICES_MAX, RESOURCE_WORD_BYTES_MAX, RESOURCES_MAX};
use crate::core::words::one_line;

/// A number of devices: `NAME[:TYPE][:N]`, as in `gpu:a100:4`. N is 1 if it is left out. What a host offers may have the numbers of
/// the devices among those of their name, as in `gpu:a100:2@1+3`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Resource {
    name: String,
    kind: Option<String>,
    count: u32,
    /// Ascending, and as many as `count`; none if they are unknown.
    numbers: Vec<u32>,
}

impl Resource {
    /// Returns a number of devices of any type. `count` is from 1 to [`DEVICES_MAX`].
    pub fn of(name: &str, count: u32) -> Result<Self, ResourceError> {
        format!("{name}:{count}").parse()
    }

    /// Returns the devices of this label with these numbers, which are ascending and below [`DEVICES_MAX`].
    pub fn with_numbers(label: &str, numbers: &[u32]) -> Result<Self, ResourceError> {
        format!("{label}:{}@{}", numbers.len(), joined(numbers)).parse()
    }

    /// The devices' name, such as `gpu`: lower-case letters, digits and `_`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Their type, such as `a100`; `None` if it is unknown or does not matter.
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// Their number: 1 to [`DEVICES_MAX`].
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Their numbers among the devices of their name, if they are known.
    pub fn numbers(&self) -> Option<&[u32]> {
        Some(self.numbers.as_slice()).filter(|numbers| !numbers.is_empty())
    }

    /// Their name and type, as in `gpu:a100`.
    pub fn label(&self) -> String {
        label(&self.name, self.kind())
    }
}

/// Writes numbers, as in `1+3`.
fn joined(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join("+")
}

/// Parses numbers of devices. Returns `None` if they are not ascending, not `count`, or too large.
fn numbers(text: &str, count: u32) -> Option<Vec<u32>> {
    let number = |word: &str| {
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        word.parse().ok().filter(|number| is_number && *number < DEVICES_MAX)
    };
    let all: Vec<u32> = text.splitn(DEVICES_MAX as usize + 1, '+').map(number).collect::<Option<_>>()?;
    (all.len() == count as usize && all.is_sorted_by(|one, next| one < next)).then_some(all)
}

/// Writes a name and a type, as in `gpu:a100`.
pub(super) fn label(name: &str, kind: Option<&str>) -> String {
    kind.map_or_else(|| name.to_owned(), |kind| format!("{name}:{kind}"))
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.label(), self.count)?;
        self.numbers().map_or(Ok(()), |numbers| write!(f, "@{}", joined(numbers)))
    }
}

/// Why a text names no devices. Words of the text are cut, and without characters that a terminal acts on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResourceError {
    /// A name or a type has other characters, or too many, or none.
    #[error("'{0}' is not a {1} of devices")]
    Word(String, &'static str),
    /// There are more than three parts.
    #[error("'{0}' has more parts than NAME:TYPE:N")]
    Parts(String),
    /// The number is not between 1 and [`DEVICES_MAX`].
    #[error("'{0}' is not a number of devices from 1 to {max}", max = DEVICES_MAX)]
    Count(String),
    /// The numbers are not ascending, too large, or not as many as the devices.
    #[error("'{0}' are not the ascending numbers of so many devices, as in @1+3")]
    Numbers(String),
    /// The list has the same name and type before.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// A list has more entries than [`RESOURCES_MAX`], or more devices than [`DEVICES_MAX`].
    #[error("there are more than {entries} entries or {devices} devices", entries = RESOURCES_MAX, devices = DEVICES_MAX)]
    TooMany,
}

/// Returns the beginning of a word from outside, fit for messages.
fn shown(word: &str) -> String {
    const CHARS_MAX: usize = 40;
    let end = if word.chars().nth(CHARS_MAX).is_some() { "…" } else { "" };
    one_line(word.chars().take(CHARS_MAX).collect()) + end
}

impl FromStr for Resource {
    type Err = ResourceError;

    fn from_str(text: &str) -> Result<Self, ResourceError> {
        let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        // Also `-1` and `1.5`: no type has such a name.
        let is_meant_as_number =
            |word: &str| !word.is_empty() && word.bytes().all(|byte| b"0123456789+-.".contains(&byte));
        let (text, numbered) = text.split_once('@').map_or((text, None), |(text, numbers)| (text, Some(numbers)));
        let words: Vec<&str> = text.splitn(4, ':').collect();
        let (name, kind, count) = match words[..] {
            [name] => (name, None, None),
            [name, count] if is_meant_as_number(count) => (name, None, Some(count)),
            [name, kind] => (name, Some(kind), None),
            [name, kind, count] => (name, Some(kind), Some(count)),
            _ => return Err(ResourceError::Parts(shown(text))),
        };
        let is_word = |word: &str, others: &[u8]| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
            !word.is_empty() && word.len() <= RESOURCE_WORD_BYTES_MAX && word.bytes().all(is_known)
        };
        // Variables are named after it.
        if !is_word(name, b"_") || is_number(name) {
            return Err(ResourceError::Word(shown(name), "name"));
        }
        if let Some(kind) = kind.filter(|kind| !is_word(kind, b"_-.+")) {
            return Err(ResourceError::Word(shown(kind), "type"));
        }
        let count = match count {
            None => 1,
            Some(word) => {
                let count = Some(word).filter(|word| is_number(word)).and_then(|word| word.parse().ok());
                let count = count.filter(|count| (1..=DEVICES_MAX).contains(count));
                count.ok_or_else(|| ResourceError::Count(shown(word)))?
            }
        };
        let numbers = match numbered {
            None => Vec::new(),
            Some(text) => numbers(text, count).ok_or_else(|| ResourceError::Numbers(shown(text)))?,
        };
        Ok(Self { name: name.to_ascii_lowercase(), kind: kind.map(str::to_owned), count, numbers })
    }
}

/// Devices of several kinds: `gpu:a100:4,fpga:allreduce:1`.
///
/// At most [`RESOURCES_MAX`] entries with at most [`DEVICES_MAX`] devices together. No two have the same name and type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Resources(Vec<Resource>);

impl Resources {
    /// No devices.
    pub const NONE: Self = Self(Vec::new());

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Resource> {
        self.0.iter()
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// The list has an entry of this name and type, or is full.
    pub fn push(&mut self, resource: Resource) -> Result<(), ResourceError> {
        if self.0.iter().any(|one| (&one.name, &one.kind) == (&resource.name, &resource.kind)) {
            return Err(ResourceError::Twice(resource.label()));
        }
        let devices = self.0.iter().map(|one| one.count).sum::<u32>() + resource.count;
        if self.0.len() >= RESOURCES_MAX || devices > DEVICES_MAX {
            return Err(ResourceError::TooMany);
        }
        self.0.push(resource);
        Ok(())
    }

    /// Adds devices to those of their name and type.
    ///
    /// # Errors
    ///
    /// The list is full.
    pub fn add(&mut self, resource: &Resource) -> Result<(), ResourceError> {
        let mut resource = resource.clone();
        let same = self.0.iter().position(|one| (&one.name, &one.kind) == (&resource.name, &resource.kind));
        // Removed first, so that the bounds hold for the sum.
        if let Some(at) = same {
            resource.count += self.0.remove(at).count;
            // The numbers of some of them say nothing about the others.
            resource.numbers.clear();
        }
        self.push(resource)
    }

    /// Returns how many ranks get what they ask for if this is what their node offers; `None` if they ask for nothing.
    ///
    /// A request with a type takes devices of this type, one without a type takes any of its name.
    pub fn ranks_of(&self, requests: &Self) -> Option<u32> {
        let sum = |list: &Self, is_meant: &dyn Fn(&Resource) -> bool| -> u32 {
            list.iter().filter(|one| is_meant(one)).map(Resource::count).sum()
        };
        let room = |is_meant: &dyn Fn(&Resource) -> bool| sum(self, is_meant) / sum(requests, is_meant).max(1);
        let of_request = |request: &Resource| {
            let all = room(&|one: &Resource| one.name == request.name);
            let of_kind = request.kind.is_some().then(|| room(&|one: &Resource| one.label() == request.label()));
            of_kind.map_or(all, |of_kind| of_kind.min(all))
        };
        requests.iter().map(of_request).min()
    }
}

impl FromStr for Resources {
    type Err = ResourceError;

    fn from_str(text: &str) -> Result<Self, ResourceError> {
        let mut list = Self::default();
        for entry in text.split(',') {
            list.push(entry.parse()?)?;
        }
        Ok(list)
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, resource) in self.0.iter().enumerate() {
            write!(f, "{}{resource}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Resources {
    type Error = ResourceError;

    fn try_from(text: String) -> Result<Self, ResourceError> {
        if text.is_empty() { Ok(Self::default()) } else { text.parse() }
    }
}

impl From<Resources> for String {
    fn from(list: Resources) -> Self {
        list.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        text.parse::<Resources>().map(|list| list.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_are_parsed() {
        for (text, expected) in [
            ("gpu", "gpu:1"),
            ("GPU:2", "gpu:2"),
            ("gpu:a100", "gpu:a100:1"),
            ("gpu:A100-sxm4:4,fpga:allreduce:1,fpga:1", "gpu:A100-sxm4:4,fpga:allreduce:1,fpga:1"),
            ("gpu:4:2", "gpu:4:2"),
            ("x:1024", "x:1024"),
            ("gpu@3,fpga:a:2@0+1023", "gpu:1@3,fpga:a:2@0+1023"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_lists_are_refused() {
        let long = "x".repeat(RESOURCE_WORD_BYTES_MAX + 1);
        for (text, expected) in [
            ("", "'' is not a name of devices"),
            ("4", "'4' is not a name of devices"),
            ("gpu,", "'' is not a name of devices"),
            ("g-u:1", "'g-u' is not a name of devices"),
            ("gpu:", "'' is not a type of devices"),
            ("gpu:a b", "'a b' is not a type of devices"),
            ("gpu:é:1", "'é' is not a type of devices"),
            ("gpu:0", "'0' is not a number of devices from 1 to 1024"),
            ("gpu:-1", "'-1' is not a number of devices from 1 to 1024"),
            ("gpu:1.5", "'1.5' is not a number of devices from 1 to 1024"),
            ("gpu:a:-1", "'-1' is not a number of devices from 1 to 1024"),
            ("gpu:1025", "'1025' is not a number of devices from 1 to 1024"),
            ("gpu:2@1", "'1' are not the ascending numbers of so many devices, as in @1+3"),
            ("gpu:2@1+1", "'1+1' are not the ascending numbers of so many devices, as in @1+3"),
            ("gpu@1024", "'1024' are not the ascending numbers of so many devices, as in @1+3"),
            ("gpu@+1", "'+1' are not the ascending numbers of so many devices, as in @1+3"),
            ("gpu@", "'' are not the ascending numbers of so many devices, as in @1+3"),
            ("gpu:a:1:2", "'gpu:a:1:2' has more parts than NAME:TYPE:N"),
            ("gpu:1,GPU:2", "'gpu' is given twice"),
            ("a:1024,b:1", "there are more than 64 entries or 1024 devices"),
            ("g\x1b", r"'g\u{1b}' is not a name of devices"),
            (&long, &format!("'{}…' is not a name of devices", &long[..40])),
        ] {
            assert_eq!(parsed(text), Err(expected.to_owned()), "{text}");
        }
        let list = |count: usize| (0..count).map(|at| format!("a{at}")).collect::<Vec<_>>().join(",");
        assert!(parsed(&list(RESOURCES_MAX)).is_ok());
        assert!(parsed(&list(RESOURCES_MAX + 1)).is_err());
    }

    #[test]
    fn devices_of_one_kind_add_up() {
        let mut list: Resources = "gpu:a100:4,fpga:1".parse().unwrap();
        list.add(&"gpu:a100:2".parse().unwrap()).unwrap();
        list.add(&"gpu:v100:1".parse().unwrap()).unwrap();
        assert_eq!(list.to_string(), "fpga:1,gpu:a100:6,gpu:v100:1");
        list.add(&"fpga:1@3".parse().unwrap()).unwrap();
        assert_eq!(list.to_string(), "gpu:a100:6,gpu:v100:1,fpga:2");
        assert_eq!(list.add(&Resource::of("gpu", DEVICES_MAX).unwrap()), Err(ResourceError::TooMany));
    }

    #[test]
    fn a_node_has_room_for_ranks() {
        let room = |offer: &str, requests: &str| {
            let list = |text: &str| Resources::try_from(text.to_owned()).unwrap();
            list(offer).ranks_of(&list(requests))
        };
        assert_eq!(room("gpu:4", ""), None);
        assert_eq!(room("", "gpu:1"), Some(0));
        assert_eq!(room("gpu:a100:4", "gpu:2"), Some(2));
        assert_eq!(room("gpu:4", "gpu:a100:1"), Some(0), "the type is unknown");
        assert_eq!(room("gpu:a100:3,gpu:v100:3", "gpu:a100:1"), Some(3));
        assert_eq!(room("gpu:a100:3,gpu:v100:2", "gpu:a100:1,gpu:1"), Some(2), "the second one is of any type");
        assert_eq!(room("gpu:8,fpga:allreduce:1", "gpu:2,fpga:allreduce:1"), Some(1));
    }
}
