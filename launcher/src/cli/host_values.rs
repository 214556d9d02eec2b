//! Values of the options about hosts, and about how agents are started. Host lists, indices and rank maps
//! stay as typed: `cluster` parses them, and its errors show the text.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::limits::{HOSTS_TIME_MAX, IFACE_BYTES_MAX, START_TIMEOUT_MAX};
use super::text::shown;
use super::values::{OPTION, Parsed, choice, decimal, described, some, some_time, time};
use crate::cluster::hosts::NAME_BYTES_MAX;
use crate::cluster::manager::{Manager, ManagerChoice};
use crate::plan::request::{BootstrapKind, LaunchShape};
use crate::refusal::Refusal;

/// Parses `--rm`. `user` is Hydra's word for none; `torque` and `uge` are further names of two managers.
pub(super) fn manager(value: &OsStr) -> Parsed<ManagerChoice> {
    use ManagerChoice::{Auto, None, Only};
    let managers = Manager::ALL.map(|manager| (manager.word(), Only(manager)));
    let choices = [&[("auto", Auto), ("none", None)][..], &managers].concat();
    let aliases = [("user", None), ("torque", Only(Manager::Pbs)), ("uge", Only(Manager::Sge))];
    let unknown = |value: &str, names: &str| format!("there is no resource manager '{value}', only {names}");
    choice(value, &choices, &aliases, unknown, described())
}

/// Parses `--bootstrap`: a word, or `exec:COMMAND`; `None` for `auto`.
pub(super) fn bootstrap(value: &OsStr) -> Parsed<Option<BootstrapKind>> {
    if let Some(command) = value.as_bytes().strip_prefix(b"exec:") {
        let command = OsStr::from_bytes(command);
        if command.as_bytes().trim_ascii().is_empty() {
            let hint = "write the command that reaches a host, as in";
            let hint = format!("{hint} {OPTION} 'exec:kubectl exec -i {{host}} --'");
            return Err(Refusal::new(format!("'{}' has no command after its ':'", shown(value)), hint));
        }
        return Ok(Some(BootstrapKind::Exec(command.to_owned())));
    }
    let manager = |manager| Some(BootstrapKind::Manager(manager));
    let managers = Manager::ALL.map(|each| (each.word(), manager(each)));
    let words = [("auto", None), ("fork", Some(BootstrapKind::Fork)), ("ssh", Some(BootstrapKind::Ssh))];
    let choices = [&words[..], &managers].concat();
    let aliases = [("torque", manager(Manager::Pbs)), ("uge", manager(Manager::Sge))];
    let unknown = |value: &str, names: &str| format!("there is no bootstrap '{value}', only {names}, exec:COMMAND");
    let hint = format!("any command that reaches a host will do, as in {OPTION} 'exec:rsh {{host}}'");
    choice(value, &choices, &aliases, unknown, hint)
}

/// Parses `--launch`.
pub(super) fn shape(value: &OsStr) -> Parsed<LaunchShape> {
    let choices = [
        ("auto", LaunchShape::Auto),
        ("linear", LaunchShape::Linear),
        ("flat", LaunchShape::Flat),
        ("tree", LaunchShape::Tree),
    ];
    let unknown = |value: &str, names: &str| format!("there is no shape of a launch '{value}', only {names}");
    choice(value, &choices, &[], unknown, described())
}

/// Parses `--connect-back`: an IP address or the name of a host, without a port. Removes brackets around an
/// IPv6 address; keeps a zone.
pub(super) fn address(value: &OsStr) -> Parsed<OsString> {
    let text = some(value)?.to_str().unwrap_or_default();
    let bracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let plain = match bracketed {
        Some(address) if is_ipv6(address) => address,
        None if text.parse::<IpAddr>().is_ok() || is_ipv6(text) || is_name(text) => text,
        _ => {
            let text = format!("'{}' is neither an IP address nor the name of a host", shown(value));
            let hint = format!("write it without a port, as in '{OPTION} 10.1.0.5'; '--port-range' is about ports");
            return Err(Refusal::new(text, hint));
        }
    };
    Ok(plain.into())
}

/// Returns whether it is an IPv6 address, with or without a zone.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(|zone| is_interface(zone.as_bytes()))
}

/// Returns whether it may be a name in DNS or in /etc/hosts.
fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX
        && text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Parses `--iface`: a name that Linux accepts, including the `:` of an alias.
pub(super) fn interface(value: &OsStr) -> Parsed<OsString> {
    let is_address = some(value)?.to_str().is_some_and(|text| text.parse::<IpAddr>().is_ok());
    if is_address || !is_interface(value.as_bytes()) {
        let hint = format!("'ip link' lists them, as in '{OPTION} ib0'; '--connect-back' takes an address");
        return Err(Refusal::new(format!("'{}' is not the name of a network interface", shown(value)), hint));
    }
    Ok(value.to_owned())
}

fn is_interface(name: &[u8]) -> bool {
    (1..=IFACE_BYTES_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && name.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'/')
}

/// Parses `--port-range`: `50000:50999` or `50000-50999`, both included, the first not greater than the last.
pub(super) fn ports(value: &OsStr) -> Parsed<(u16, u16)> {
    let refused = |text| Refusal::new(text, format!("write two ports, 1 to 65535, as in '{OPTION} 50000:50999'"));
    let not_ports = || refused(format!("'{}' is not a first port, a ':' and a last port", shown(value)));
    let (first, last) = some(value)?.to_str().and_then(|text| text.split_once([':', '-'])).ok_or_else(not_ports)?;
    let port = |text: &str| {
        let digits = Some(text.as_bytes()).filter(|digits| !digits.is_empty());
        let port = digits.and_then(decimal).and_then(|port| u16::try_from(port).ok());
        port.filter(|port| *port > 0).ok_or_else(not_ports)
    };
    let (first, last) = (port(first)?, port(last)?);
    if first <= last { Ok((first, last)) } else { Err(refused(format!("the ports {first}:{last} go downwards"))) }
}

/// Parses `--start-timeout`: more than zero.
pub(super) fn start_timeout(value: &OsStr) -> Parsed<Duration> {
    some_time(value, START_TIMEOUT_MAX, "the usual time")
}

/// Parses `--wait-for-hosts`, which may be zero.
pub(super) fn wait_for_hosts(value: &OsStr) -> Parsed<Duration> {
    time(value, HOSTS_TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values::tests::check;

    #[test]
    fn managers() {
        let only = ManagerChoice::Only;
        check(
            manager,
            &[
                ("auto", ManagerChoice::Auto),
                ("none", ManagerChoice::None),
                ("user", ManagerChoice::None),
                ("Slurm", only(Manager::Slurm)),
                ("pbs", only(Manager::Pbs)),
                ("torque", only(Manager::Pbs)),
                ("lsf", only(Manager::Lsf)),
                ("sge", only(Manager::Sge)),
                ("uge", only(Manager::Sge)),
                ("flux", only(Manager::Flux)),
            ],
            &[
                ("", "the value is empty"),
                ("slrum", "there is no resource manager 'slrum', only auto, none, slurm, pbs, lsf, sge, flux"),
            ],
        );
    }

    #[test]
    fn bootstraps() {
        const ONLY: &str = "only auto, fork, ssh, slurm, pbs, lsf, sge, flux, exec:COMMAND";
        check(
            bootstrap,
            &[
                ("auto", None),
                ("fork", Some(BootstrapKind::Fork)),
                ("SSH", Some(BootstrapKind::Ssh)),
                ("slurm", Some(BootstrapKind::Manager(Manager::Slurm))),
                ("torque", Some(BootstrapKind::Manager(Manager::Pbs))),
                ("flux", Some(BootstrapKind::Manager(Manager::Flux))),
                ("exec:oc rsh {host}", Some(BootstrapKind::Exec("oc rsh {host}".into()))),
            ],
            &[
                ("", "the value is empty"),
                ("rsh", &format!("there is no bootstrap 'rsh', {ONLY}")),
                ("exec", &format!("there is no bootstrap 'exec', {ONLY}")),
                ("exec:", "'exec:' has no command after its ':'"),
                ("exec: ", "'exec: ' has no command after its ':'"),
            ],
        );
    }

    #[test]
    fn shapes() {
        check(
            shape,
            &[
                ("auto", LaunchShape::Auto),
                ("linear", LaunchShape::Linear),
                ("flat", LaunchShape::Flat),
                ("Tree", LaunchShape::Tree),
            ],
            &[
                ("", "the value is empty"),
                ("star", "there is no shape of a launch 'star', only auto, linear, flat, tree"),
            ],
        );
    }

    #[test]
    fn addresses() {
        let wrong = |text: &str| format!("'{text}' is neither an IP address nor the name of a host");
        let name = "n".repeat(NAME_BYTES_MAX);
        check(
            address,
            &[
                ("10.1.0.5", "10.1.0.5".into()),
                ("::1", "::1".into()),
                ("[fe80::1%ib0]", "fe80::1%ib0".into()),
                ("login-1.example.org", "login-1.example.org".into()),
                ("süd", "süd".into()),
                (&name, name.clone().into()),
            ],
            &[
                ("", "the value is empty"),
                ("login:5000", &wrong("login:5000")),
                ("[::1]:5000", &wrong("[::1]:5000")),
                ("[login]", &wrong("[login]")),
                ("fe80::1%", &wrong("fe80::1%")),
                ("-x", &wrong("-x")),
                ("a b", &wrong("a b")),
                ("a/24", &wrong("a/24")),
            ],
        );
        assert!(address(OsStr::new(&format!("{name}n"))).is_err());
        assert!(address(OsStr::from_bytes(b"\xff")).is_err());
    }

    #[test]
    fn interfaces() {
        let wrong = |text: &str| format!("'{text}' is not the name of a network interface");
        check(
            interface,
            &[
                ("ib0", "ib0".into()),
                ("eth0:1", "eth0:1".into()),
                ("enp0s31f6.100", "enp0s31f6.100".into()),
                ("fifteen-bytes-x", "fifteen-bytes-x".into()),
            ],
            &[
                ("", "the value is empty"),
                ("sixteen-bytes-xx", &wrong("sixteen-bytes-xx")),
                ("10.1.0.5", &wrong("10.1.0.5")),
                ("a/b", &wrong("a/b")),
                ("a b", &wrong("a b")),
                ("..", &wrong("..")),
            ],
        );
    }

    #[test]
    fn ranges_of_ports() {
        let wrong = |text: &str| format!("'{text}' is not a first port, a ':' and a last port");
        check(
            ports,
            &[("50000:50999", (50_000, 50_999)), ("1-65535", (1, 65_535)), ("7:7", (7, 7))],
            &[
                ("", "the value is empty"),
                ("5000", &wrong("5000")),
                ("0:10", &wrong("0:10")),
                ("1:65536", &wrong("1:65536")),
                ("1:", &wrong("1:")),
                (":1", &wrong(":1")),
                ("1-2-3", &wrong("1-2-3")),
                ("+1:2", &wrong("+1:2")),
                ("9:3", "the ports 9:3 go downwards"),
            ],
        );
    }

    #[test]
    fn times_to_start_in() {
        check(
            start_timeout,
            &[("90", Duration::from_secs(90)), ("24h", START_TIMEOUT_MAX)],
            &[("0", "the time must be greater than 0"), ("25h", "'25h' is too long, the most is 24 hours")],
        );
    }
}
