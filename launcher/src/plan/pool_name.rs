//! The names of pools.

use crate::refusal::Refusal;

/// The pool that is meant if none is named.
pub const POOL_DEFAULT: &str = "default";
/// The most bytes of a pool's name.
pub const POOL_NAME_BYTES_MAX: usize = 32;

/// Checks the name of a pool: letters, digits, `.`, `_` and `-`, beginning with a letter or digit. So it is the name of a file,
/// and of a word that is no option.
pub fn check_pool_name(name: &str) -> Result<(), Refusal> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() <= POOL_NAME_BYTES_MAX && begins_well && name.chars().all(is_known) {
        return Ok(());
    }
    let text = format!("'{name}' is not a valid pool name");
    let hint = format!(
        "use at most {POOL_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', beginning with a letter or digit"
    );
    Err(Refusal::new(text, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pools_are_plain() {
        for good in ["default", "a", "A.b_c-1", &"x".repeat(POOL_NAME_BYTES_MAX)] {
            assert!(check_pool_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "a b", "\u{e9}", "a\0", &"x".repeat(POOL_NAME_BYTES_MAX + 1)] {
            assert!(check_pool_name(bad).is_err(), "{bad}");
        }
    }
}
