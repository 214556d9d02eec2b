//! Values of the options about accelerators and other devices of ranks.

use std::ffi::OsStr;

use nla::core::{ResourceError, Resources};

use super::text::shown;
use super::values::{OPTION, Parsed, some};
use crate::refusal::Refusal;

/// Adds a value of `--gres` to those typed before: `NAME[:TYPE][:N]`, or several with commas between them.
pub(super) fn add(list: &mut Resources, value: &OsStr) -> Parsed<()> {
    let refused = |error: ResourceError| {
        Refusal::new(
            format!("{}: {error}", shown(value)),
            format!("write the devices of each rank, as in '{OPTION} gpu:a100:2'"),
        )
    };
    let more: Resources = some(value)?.to_string_lossy().parse().map_err(refused)?;
    if let Some(one) = more.iter().find(|one| one.numbers().is_some()) {
        let text = format!("{}: only gres= in the file of -f numbers devices", shown(value));
        return Err(Refusal::new(text, format!("write the devices of each rank, as in '{OPTION} {}'", one.label())));
    }
    more.iter().try_for_each(|resource| list.push(resource.clone())).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(values: &[&str]) -> Result<String, String> {
        let mut list = Resources::NONE;
        for value in values {
            add(&mut list, OsStr::new(value)).map_err(|error| error.to_string())?;
        }
        Ok(list.to_string())
    }

    #[test]
    fn values_add_up() {
        assert_eq!(added(&["gpu:2", "fpga:allreduce"]).as_deref(), Ok("gpu:2,fpga:allreduce:1"));
        assert_eq!(added(&["gpu:a100,gpu:v100:3"]).as_deref(), Ok("gpu:a100:1,gpu:v100:3"));
    }

    #[test]
    fn other_values_are_refused() {
        let check = |values: &[&str], expected: &str| assert_eq!(added(values), Err(expected.to_owned()));
        check(&[""], "the value is empty");
        check(&["gpu", "gpu:2"], "gpu:2: 'gpu' is given twice");
        check(&["gpu:1025"], "gpu:1025: '1025' is not a number of devices from 1 to 1024");
        check(&["gpu@1"], "gpu@1: only gres= in the file of -f numbers devices");
        check(&["gpu\n"], r"gpu\n: 'gpu\n' is not a name of devices");
        check(&["a:1000", "b:25"], "b:25: there are more than 64 entries or 1024 devices");
    }
}
