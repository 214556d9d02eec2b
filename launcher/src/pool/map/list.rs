//! The list of commands, one on each line.

use std::ops::Range;

use thiserror::Error;

/// The most bytes of a list.
pub const LIST_BYTES_MAX: usize = 64 << 20;
/// The most commands of a list.
pub const COMMANDS_MAX: usize = 1_000_000;
/// The most bytes of a command: the longest argument of a program that Linux accepts (MAX_ARG_STRLEN, without its null byte).
pub const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;

/// Why a list is refused. Displays as a fragment that follows the list's name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ListError {
    /// It is longer than [`LIST_BYTES_MAX`].
    #[error("it has more than {} MiB", LIST_BYTES_MAX >> 20)]
    TooLong,
    /// It has more than [`COMMANDS_MAX`] commands.
    #[error("it has more than {COMMANDS_MAX} commands")]
    TooManyCommands,
    /// The command on this line is longer than [`COMMAND_BYTES_MAX`].
    #[error("the command on line {0} has more than {COMMAND_BYTES_MAX} bytes")]
    LongCommand(usize),
    /// This line has a null byte, which no argument of a program can have.
    #[error("line {0} has a null byte: is it a text file?")]
    NullByte(usize),
}

/// A list of commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    bytes: Vec<u8>,
    /// The range of each command in `bytes`.
    commands: Vec<Range<usize>>,
}

impl List {
    /// Parses a list. Lines that are blank, or that begin with `#` after blanks, are no commands.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ListError> {
        if bytes.len() > LIST_BYTES_MAX {
            return Err(ListError::TooLong);
        }
        let mut commands = Vec::new();
        let mut start = 0;
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let place = start..start + line.len();
            start = place.end + 1;
            if matches!(line.trim_ascii_start(), [] | [b'#', ..]) {
                continue;
            }
            if line.contains(&0) {
                return Err(ListError::NullByte(at + 1));
            }
            if line.len() > COMMAND_BYTES_MAX {
                return Err(ListError::LongCommand(at + 1));
            }
            if commands.len() == COMMANDS_MAX {
                return Err(ListError::TooManyCommands);
            }
            commands.push(place);
        }
        Ok(Self { bytes, commands })
    }

    /// Returns how many commands there are.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns whether there is no command.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the command at this index; `None` beyond the last one.
    pub fn command(&self, index: usize) -> Option<&[u8]> {
        self.commands.get(index).map(|place| &self.bytes[place.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<List, ListError> {
        List::parse(text.as_bytes().to_vec())
    }

    #[test]
    fn blank_lines_and_comments_are_no_commands() {
        let list = parsed("# first\n\n a b \n\t# c\n  \nd # e\nf").unwrap();
        let commands: Vec<_> = (0..list.len()).map(|index| list.command(index).unwrap()).collect();
        assert_eq!(commands, [&b" a b "[..], b"d # e", b"f"]);
        assert_eq!(list.command(3), None);
        assert!(!list.is_empty() && parsed("").unwrap().is_empty() && parsed("\n#\n").unwrap().is_empty());
    }

    #[test]
    fn bounds_are_those_of_the_kernel_and_of_memory() {
        let longest = "x".repeat(COMMAND_BYTES_MAX);
        assert_eq!(parsed(&format!("a\n{longest}\n")).unwrap().len(), 2);
        assert_eq!(parsed(&format!("a\n{longest}x\n")), Err(ListError::LongCommand(2)));
        assert_eq!(parsed("a\nb\0c\n"), Err(ListError::NullByte(2)));
        assert_eq!(parsed(&"a\n".repeat(COMMANDS_MAX)).unwrap().len(), COMMANDS_MAX);
        assert_eq!(parsed(&"a\n".repeat(COMMANDS_MAX + 1)), Err(ListError::TooManyCommands));
        assert_eq!(List::parse(vec![b'\n'; LIST_BYTES_MAX + 1]), Err(ListError::TooLong));
        assert_eq!(ListError::TooLong.to_string(), "it has more than 64 MiB");
    }
}
