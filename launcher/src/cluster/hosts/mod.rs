//! Host lists and hosts files, as people and resource managers write them.
//!
//! One grammar for options, files and variables. [`parse_list`] parses a list, [`parse_file`] a
//! hosts file; [`select`] and [`exclude()`] choose from their results; [`expand`] parses names only, and
//! [`fold()`] writes names as the short text that all reports use. All are functions of their
//! arguments: they read no file, variable or clock, and resolve no name.
//!
//! ```text
//! list      = item { "," item }
//! item      = [ user "@" ] host [ ":" slots ]
//! host      = "[" address [ "%" zone ] "]"  |  part { part }
//! part      = text  |  "[" ranges "]"
//! ranges    = range { "," range }
//! range     = number [ ( "-" | ".." ) number [ ( "/" | ":" ) step ] ]
//!
//! line      = [ list { blanks attribute } ] [ comment ]           a line of a file
//! attribute = ( "slots" | "max-slots" | "max_slots" ) "=" number  |  "user" "=" user
//! indices   = ranges                                              counted from 1
//! ```
//!
//! - **Host names are opaque.** They are never shortened, never resolved, and never compared to decide
//!   whether two of them are one machine. `node1` and `node1.example.org` are two names.
//! - **Order and duplicates stay.** Several ranges in a name count like digits, the last one fastest.
//!   A name written twice is two entries; the caller decides whether their slots add up.
//! - **Padding.** Numbers of a range have at least as many digits as its first number: `001-032`. A
//!   last number with zeros in front must have as many digits as the first.
//! - **Address or ranges.** A `[` where a host begins opens an IPv6 address if the text in the brackets
//!   has a `:` and, in front of a `%`, neither `-` nor `..`; else it opens ranges. No address has one of
//!   the two, and no range has a `:` without one. Addresses are stored without brackets.
//! - **Characters.** Names of hosts and users are letters and digits of any script, `-`, `.`, `_` and
//!   `+`, and begin with a letter, a digit or `_`: what begins with a dash is an option to ssh, and
//!   what consists of dots is a folder. Blanks are space and tab.
//! - **Bounds.** [`HOSTS_MAX`], [`NAME_BYTES_MAX`] and [`TEXT_BYTES_MAX`] are checked before anything is
//!   expanded.
//!
//! The crates for this (`nodeset`, `hostlist`) return sets without order or errors without a position, and support
//! neither slots nor users nor addresses.

mod cursor;
mod error;
mod exclude;
mod expression;
mod file;
mod fold;
mod index;
mod list;
mod problem;
mod ranges;

#[cfg(test)]
mod every_short_text;
#[cfg(test)]
mod properties;

pub use self::error::HostsError;
pub use self::exclude::{Excluded, exclude};
pub use self::file::parse_file;
pub(crate) use self::fold::first_of;
pub use self::fold::{fold, fold_within, quoted};
pub use self::index::select;
pub use self::list::{expand, parse_list};

/// The most hosts in a list, a file or an expression: the most agents of a session.
pub const HOSTS_MAX: usize = nla::core::limits::AGENTS_MAX as usize;

/// The longest name of a host or user, in bytes; the same as for a name in DNS.
pub const NAME_BYTES_MAX: usize = 253;

/// The largest list or file, in bytes: 64 bytes for each of `HOSTS_MAX` hosts.
pub const TEXT_BYTES_MAX: usize = HOSTS_MAX * 64;
