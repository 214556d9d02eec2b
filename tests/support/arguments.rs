//! The arguments of a test target without libtest's harness.

/// Returns whether libtest's arguments select the only test of a target, `name`. Lists it if they ask for that.
pub fn is_wanted(name: &str, arguments: &[String]) -> bool {
    let mut filters = Vec::new();
    let (mut exact, mut list, mut ignored) = (false, false, false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--exact" => exact = true,
            "--list" => list = true,
            "--ignored" => ignored = true,
            "--test-threads" | "--skip" | "--color" | "--format" | "--logfile" | "-Z" => drop(words.next()),
            flag if flag.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    let fits = |filter: &&str| if exact { name == *filter } else { name.contains(filter) };
    let wanted = !ignored && (filters.is_empty() || filters.iter().any(fits));
    if list && wanted {
        println!("{name}: test");
    }
    wanted && !list
}
