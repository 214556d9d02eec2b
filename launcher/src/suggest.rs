//! "Did you mean ...?": clap's own measure of similarity, for any list of words.

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};

/// Longer words are not compared.
const WORD_BYTES_MAX: usize = 64;
/// Words up to this length are compared with names of two letters.
const SHORT_BYTES_MAX: usize = 4;

/// Returns the candidate that is most similar to `word`, if one is similar enough.
///
/// Words and candidates of one letter are similar to nothing. Clap's measure finds
/// nothing similar to most words of two letters, and `-np` is the option that is typed most: for those, a candidate of
/// two letters that shares one of them is taken, and for words of up to four letters (`nump`) one whose letters occur
/// in the same order.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() < 2 || word.len() > WORD_BYTES_MAX {
        return None;
    }
    let mut candidates = candidates.filter(|candidate| candidate.len() > 1);
    if word.len() == 2 {
        return candidates.find(|candidate| candidate.len() == 2 && word.contains(|c| candidate.contains(c)));
    }
    let candidates: Vec<&str> = candidates.collect();
    let parser = PossibleValuesParser::new(candidates.iter().map(|candidate| (*candidate).to_owned()));
    let command = Command::new("")
        .no_binary_name(true)
        .disable_help_flag(true)
        .arg(Arg::new("word").allow_hyphen_values(true).value_parser(parser));
    let error = command.try_get_matches_from([word]).err()?;
    if let Some(ContextValue::String(found)) = error.get(ContextKind::SuggestedValue) {
        return candidates.into_iter().find(|candidate| candidate == found);
    }
    let is_within = |candidate: &&str| {
        let mut letters = word.chars();
        candidate.len() == 2 && candidate.chars().all(|wanted| letters.any(|letter| letter == wanted))
    };
    candidates.into_iter().find(is_within).filter(|_| word.len() <= SHORT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_found() {
        let nearest = |word| nearest(word, ["python3", "np", "n", "wdir", "verbose"].into_iter());
        for (word, found) in [
            ("pyhton3", Some("python3")),
            ("npp", Some("np")),
            ("nump", Some("np")),
            ("pn", Some("np")),
            ("verb", Some("verbose")),
            ("-", None),
            ("x", None),
            ("zz", None),
            ("something-else", None),
        ] {
            assert_eq!(nearest(word), found, "{word}");
        }
        assert_eq!(nearest(&"v".repeat(100_000)), None);
    }
}
