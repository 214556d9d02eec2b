//! Errors in a command line: the problem, its place, and a hint.

use std::error::Error;
use std::fmt;
use std::io;

use super::limits::CONFIGFILE_BYTES_MAX;
use super::text::shown;
use super::value_problem::ValueProblem;
use crate::plan::request::TypedAt;

impl fmt::Display for TypedAt {
    /// `FILE, line 3, column 7`, or `the command line`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("the command line"),
            Self::File { path, line, column } => {
                write!(f, "{}, line {line}, column {column}", shown(path.as_os_str()))
            }
        }
    }
}

/// An error in the command line. Displays the problem, after its place if that is in a file. The exit code is 2.
#[derive(Debug)]
pub struct UsageError {
    place: TypedAt,
    problem: Box<Problem>,
    called: String,
}

impl UsageError {
    /// Returns the place of the error.
    pub fn place(&self) -> &TypedAt {
        &self.place
    }

    /// Returns the problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the next step to try, a fragment without full stop.
    pub fn hint(&self) -> String {
        self.problem.hint(&self.called)
    }

    /// Returns the error with its causes, and the hint on a line of its own.
    pub fn with_hint(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        format!("{text}\n  hint: {}", self.hint())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            TypedAt::CommandLine => write!(f, "{}", self.problem),
            place @ TypedAt::File { .. } => write!(f, "{place}: {}", self.problem),
        }
    }
}

impl Error for UsageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.problem.source()
    }
}

/// A problem of a command line. Names of options are as typed, dashes included; text from outside is fit for
/// printing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// An unknown option.
    #[error("there is no option '{option}'")]
    UnknownOption {
        /// As typed.
        option: String,
        /// The option that may have been meant.
        similar: Option<String>,
    },
    /// Another launcher's option.
    #[error("scela-run has no option '{option}', which in other launchers {purpose}")]
    NotHere {
        /// As typed.
        option: String,
        /// Its purpose there.
        purpose: &'static str,
        /// Our option for the same.
        instead: Option<&'static str>,
    },
    /// An MPI program that was started without a launcher looks for one.
    #[error("'{option}' comes from an MPI program that was started without a launcher")]
    Singleton {
        /// As typed.
        option: String,
    },
    /// An option without its value: the words or the command end, or another option follows.
    #[error("option '{option}' needs a value: {option} {values}")]
    MissingValue {
        /// As typed.
        option: String,
        /// The names of its values.
        values: String,
    },
    /// `=` after an option that takes no value.
    #[error("option '{option}' takes no value, and was given '{value}'")]
    UnexpectedValue {
        /// As typed.
        option: String,
        /// The text after `=`.
        value: String,
    },
    /// An invalid value.
    #[error("option '{option}': {problem}")]
    Value {
        /// As typed.
        option: String,
        /// The problem of the value.
        problem: ValueProblem,
    },
    /// The only command has no program.
    #[error("there is no program to run")]
    MissingProgram,
    /// The only command has no program, and its last option took two words.
    #[error("there is no program to run: '{option}' took '{value}' as the value of '{name}'")]
    ProgramTakenAsValue {
        /// As typed.
        option: String,
        /// The variable's name.
        name: String,
        /// The word after it.
        value: String,
    },
    /// One of several commands has no program.
    #[error("command {command} of {commands} has no program")]
    MissingProgramOf {
        /// Which command, counted from 1.
        command: usize,
        /// How many there are.
        commands: usize,
    },
    /// Options for a program and no program, on a line of a configfile.
    #[error("there are options for a program, but no program")]
    MissingProgramOnLine,
    /// A `:` at the beginning or end of a configfile's line.
    #[error("there is no program on one side of this ':'")]
    LonelyColon,
    /// A program called "".
    #[error("the program's name is empty")]
    EmptyProgram,
    /// `--demo` and something else to run.
    #[error("option '--demo' runs a program of its own, and '{program}' cannot run beside it")]
    DemoNotAlone {
        /// The other program.
        program: String,
    },
    /// A simulation and a program.
    #[error("a simulation runs no program, and '{program}' is one")]
    SimulationNotAlone {
        /// The program.
        program: String,
    },
    /// A simulation and an option for a program.
    #[error("option '{option}' is about a program, and a simulation runs none")]
    NotInSimulation {
        /// As typed.
        option: String,
    },
    /// An option about a simulation where there is none.
    #[error("option '{option}' is about a simulation, and this is none")]
    OnlyInSimulation {
        /// As typed.
        option: String,
    },
    /// A calibration and a program.
    #[error("a calibration runs no program, and '{program}' is one")]
    CalibrationNotAlone {
        /// The program.
        program: String,
    },
    /// A calibration and an option for a program, or for another mode.
    #[error("option '{option}' has no place in a calibration, which runs no program")]
    NotInCalibration {
        /// As typed.
        option: String,
    },
    /// Two contradicting options.
    #[error("options '{option}' and '{other}' contradict each other: {why}")]
    Conflict {
        /// The one that was typed later, as typed.
        option: String,
        /// The one that was typed before.
        other: String,
        /// The reason, a fragment.
        why: &'static str,
    },
    /// A configfile and a program on the command line.
    #[error("the programs come from '{path}', and '{program}' is one more on the command line")]
    ConfigfileNotAlone {
        /// The configfile.
        path: String,
        /// The program.
        program: String,
    },
    /// A configfile and an option for one program on the command line.
    #[error("option '{option}' is about one program, and the programs come from '{path}'")]
    ConfigfileLocalOption {
        /// As typed.
        option: String,
        /// The configfile.
        path: String,
    },
    /// An option that only the command line can have.
    #[error("option '{option}' is not allowed in a configfile")]
    NotInConfigfile {
        /// As typed.
        option: String,
    },
    /// The configfile cannot be read.
    #[error("cannot read the configfile '{path}'")]
    ConfigfileRead {
        /// The file's name.
        path: String,
        /// The error of the last system call.
        #[source]
        source: io::Error,
    },
    /// The configfile exceeds its bound.
    #[error("the configfile '{path}' is larger than {} MiB", CONFIGFILE_BYTES_MAX >> 20)]
    ConfigfileTooLarge {
        /// The file's name.
        path: String,
    },
    /// The configfile has no command.
    #[error("the configfile '{path}' names no program")]
    ConfigfileEmpty {
        /// The file's name.
        path: String,
    },
    /// A quote that its line does not close.
    #[error("the quote {quote} is not closed on its line")]
    QuoteOpen {
        /// The quote.
        quote: char,
    },
    /// A backslash at the end of the file.
    #[error("the file ends with a backslash")]
    BackslashAtEnd,
    /// A NUL byte, which no argument can contain.
    #[error("there is a NUL byte, which no argument can contain")]
    NulByte,
}

impl Problem {
    fn hint(&self, called: &str) -> String {
        match self {
            Self::UnknownOption { similar: Some(similar), .. } => {
                format!("did you mean '{similar}'? '{called} --help' lists all options")
            }
            Self::UnknownOption { similar: None, .. } => {
                format!("'{called} --help' lists all options; options of the program go after its name")
            }
            Self::NotHere { instead: Some(instead), .. } => {
                format!("use '{instead}'; '{called} --help' lists all options")
            }
            Self::NotHere { instead: None, .. } => {
                format!("remove it; '{called} --help' lists all options")
            }
            Self::Singleton { .. } => {
                "start that program with 'scela-run -np 1 PROGRAM'; a launcher cannot be added later".to_owned()
            }
            Self::MissingValue { .. } => {
                format!("'{called} --help' describes it; write a ':' or an option's name as a value after '='")
            }
            Self::UnexpectedValue { option, .. } => format!("write '{option}' alone"),
            Self::Value { option, problem } => problem.hint(option, called),
            Self::MissingProgram => {
                format!("name one after the options, '{called} -np 4 ./a.out', or try '{called} --demo'")
            }
            Self::ProgramTakenAsValue { option, name, value } => {
                format!("name a program after it, or write '{option} {name}=VALUE {value}'")
            }
            Self::MissingProgramOf { .. } => {
                format!("each ':' begins another command: '{called} -np 1 ./a.out : -np 3 ./b.out'")
            }
            Self::MissingProgramOnLine => {
                "put the program on the same line, or end the line with a backslash".to_owned()
            }
            Self::LonelyColon => "remove it; each line is a command of its own".to_owned(),
            Self::EmptyProgram => "a variable on the command line may be unset".to_owned(),
            Self::DemoNotAlone { .. } => format!("try '{called} -np 64 --demo'"),
            Self::SimulationNotAlone { .. } | Self::NotInSimulation { .. } | Self::OnlyInSimulation { .. } => {
                format!("try '{called} --simulate 1024x64'")
            }
            Self::CalibrationNotAlone { .. } | Self::NotInCalibration { .. } => {
                format!("try '{called} --calibrate node[01-04]'")
            }
            Self::Conflict { option, other, .. } => format!("leave '{option}' or '{other}' out"),
            Self::ConfigfileNotAlone { .. } => {
                "put it on a line of its own in the file, or leave '-configfile' out".to_owned()
            }
            Self::ConfigfileLocalOption { .. } => "put it on the program's line in the file".to_owned(),
            Self::NotInConfigfile { .. } => "put it on the command line".to_owned(),
            Self::ConfigfileRead { .. } => "check the file's name and permissions".to_owned(),
            Self::ConfigfileTooLarge { .. } => "check the file's name".to_owned(),
            Self::ConfigfileEmpty { .. } => "write a line for each program, for example: -np 4 ./a.out".to_owned(),
            Self::QuoteOpen { quote } => {
                format!("close it, or write \\{quote} for the character itself")
            }
            Self::BackslashAtEnd => "remove it, or write \\\\ for the character itself".to_owned(),
            Self::NulByte => "check that it is a text file".to_owned(),
        }
    }
}

/// A problem and its place, before the name of the call is added.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) place: TypedAt,
    pub(super) problem: Box<Problem>,
}

impl Fault {
    pub(super) fn new(place: TypedAt, problem: Problem) -> Self {
        Self { place, problem: Box::new(problem) }
    }

    pub(super) fn into_usage_error(self, called: &str) -> UsageError {
        UsageError { place: self.place, problem: self.problem, called: called.to_owned() }
    }
}
