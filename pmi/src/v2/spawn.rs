//! `cmd=spawn`: the one request of PMI-2 that is a list of lists.
//!
//! First how many commands and preputs there are, and the preputs; then each command, from its
//! `subcmd` to the next. MPICH <= 4.0 and Slurm have the arguments before the infos and count both
//! from 0. The specification of MPICH >= 4.1 has the infos' number first and counts arguments from
//! 1, and its parser looks for an info's value as `infoval_N`. All of that is read.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::pairs::{self, Pairs};
use crate::limits::{SPAWN_COMMANDS_MAX, SPAWN_PREPUTS_MAX};
use crate::request::{SpawnCommand, SpawnRequest, SpawnRequestError};
pub use crate::v1::spawn::SpawnError;
use crate::wire::fields;
use crate::wire::numbered::{NumberedPairs, into_list};

/// A request, being read.
#[derive(Default)]
struct Reader {
    commands_said: Option<usize>,
    preputs: NumberedPairs,
    commands: Vec<SpawnCommand>,
    /// The command that is being read.
    open: Option<Open>,
}

/// A command that is being read.
struct Open {
    program: Vec<u8>,
    nprocs: Option<u32>,
    args_said: Option<usize>,
    args: BTreeMap<u32, Vec<u8>>,
    infos: NumberedPairs,
}

/// Reads the pairs of a request. What it gives has passed [`SpawnRequest::check`].
pub fn parse(pairs: Pairs<'_>) -> Result<SpawnRequest, SpawnError> {
    let mut reader = Reader::default();
    for (name, value) in pairs.iter() {
        reader.field(name, value)?;
    }
    reader.finish()
}

impl Reader {
    fn field(&mut self, name: &[u8], value: Cow<'_, [u8]>) -> Result<(), SpawnError> {
        match name {
            b"ncmds" => self.commands_said = Some(number("ncmds", &value)?),
            b"preputcount" => self.preputs.said = Some(number("preputcount", &value)?),
            b"subcmd" => {
                self.close()?;
                self.open = Some(Open::of(value.into_owned()));
            }
            _ => {
                if let Some(number) = number_behind(b"ppkey", name) {
                    self.preputs.keys.insert(number, value.into_owned());
                } else if let Some(number) = number_behind(b"ppval", name) {
                    self.preputs.values.insert(number, value.into_owned());
                } else if let Some(open) = &mut self.open {
                    open.field(name, value)?;
                }
            }
        }
        Ok(())
    }

    /// The command that was being read is complete.
    fn close(&mut self) -> Result<(), SpawnError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if self.commands.len() == SPAWN_COMMANDS_MAX {
            return Err(SpawnRequestError::Commands.into());
        }
        self.commands.push(SpawnCommand {
            program: open.program,
            args: into_list(open.args, open.args_said).ok_or(SpawnError::Incomplete("arguments"))?,
            nprocs: open.nprocs.ok_or(SpawnError::Missing("maxprocs"))?,
            info: open.infos.into_list().ok_or(SpawnError::Incomplete("infos"))?,
        });
        Ok(())
    }

    fn finish(mut self) -> Result<SpawnRequest, SpawnError> {
        self.close()?;
        if self.commands_said.is_some_and(|said| said != self.commands.len()) {
            return Err(SpawnError::Incomplete("commands"));
        }
        let preputs = self.preputs.into_list().ok_or(SpawnError::Incomplete("preputs"))?;
        if preputs.len() > SPAWN_PREPUTS_MAX {
            return Err(SpawnRequestError::Preputs.into());
        }
        let mut order = SpawnRequest { commands: self.commands, preputs: Vec::new() };
        for preput in preputs {
            match order.preputs.iter_mut().find(|known| known.0 == preput.0) {
                Some(known) => *known = preput,
                None => order.preputs.push(preput),
            }
        }
        order.check()?;
        Ok(order)
    }
}

impl Open {
    fn of(program: Vec<u8>) -> Self {
        let (args, infos) = (BTreeMap::new(), NumberedPairs::default());
        Self { program, nprocs: None, args_said: None, args, infos }
    }

    fn field(&mut self, name: &[u8], value: Cow<'_, [u8]>) -> Result<(), SpawnError> {
        match name {
            b"maxprocs" => self.nprocs = Some(number("maxprocs", &value)?),
            b"argc" => self.args_said = Some(number("argc", &value)?),
            b"infokeycount" => self.infos.said = Some(number("infokeycount", &value)?),
            _ => {
                if let Some(number) = number_behind(b"argv", name) {
                    self.args.insert(number, value.into_owned());
                } else if let Some(number) = number_behind(b"infokey", name) {
                    self.infos.keys.insert(number, value.into_owned());
                } else if let Some(number) =
                    number_behind(b"infoval", name).or_else(|| number_behind(b"infoval_", name))
                {
                    self.infos.values.insert(number, value.into_owned());
                }
            }
        }
        Ok(())
    }
}

fn number_behind(prefix: &[u8], name: &[u8]) -> Option<u32> {
    name.strip_prefix(prefix).and_then(fields::number)
}

fn number<T: std::str::FromStr>(name: &'static str, value: &[u8]) -> Result<T, SpawnError> {
    fields::number(fields::trim(value)).ok_or(SpawnError::NotANumber(name))
}

/// Appends the pairs of an order, in the one sequence that Slurm's plug-in reads.
pub fn write(order: &SpawnRequest, out: &mut Vec<u8>) {
    let mut pair = |name: &str, value: &[u8]| pairs::write(name, value, out);
    pair("ncmds", order.commands.len().to_string().as_bytes());
    pair("preputcount", order.preputs.len().to_string().as_bytes());
    for (number, (key, value)) in order.preputs.iter().enumerate() {
        pair(&format!("ppkey{number}"), key);
        pair(&format!("ppval{number}"), value);
    }
    for command in &order.commands {
        pair("subcmd", &command.program);
        pair("maxprocs", command.nprocs.to_string().as_bytes());
        pair("argc", command.args.len().to_string().as_bytes());
        for (number, arg) in command.args.iter().enumerate() {
            pair(&format!("argv{number}"), arg);
        }
        pair("infokeycount", command.info.len().to_string().as_bytes());
        for (number, (key, value)) in command.info.iter().enumerate() {
            pair(&format!("infokey{number}"), key);
            pair(&format!("infoval{number}"), value);
        }
    }
}

#[cfg(test)]
mod tests;
