//! Which known name somebody probably meant. Used in the words of a fault only, never to guess on a caller's behalf.

/// Names longer than this are not mistyped ones of ours, and comparing them would cost.
const LONGEST: usize = 40;

/// The known name closest to `name`: the same but for case and separators, or at most two slips of the finger away.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > LONGEST {
        return None;
    }
    let wanted = folded(name);
    let allowed = (wanted.len() / 3).min(2);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &folded(candidate)), candidate))
        .filter(|(slips, _)| *slips <= allowed)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// `replyTo`, `reply-to` and `Reply_To` are one name.
fn folded(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// How many letters are missing, spare, wrong or swapped with a neighbour.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, r) in right.iter().enumerate() {
            let mut least = (above[j] + usize::from(l != r)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && left[i - 1] == *r && right[j - 1] == *l {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_another_word_finds_none() {
        let known = ["subject", "text", "html", "reply_to", "cc", "bcc"];
        for (name, meant) in [
            ("subjetc", Some("subject")),
            ("Subject", Some("subject")),
            ("replyTo", Some("reply_to")),
            ("reply-to", Some("reply_to")),
            ("bbc", Some("bcc")),
            ("body", None),
            ("x", None),
            ("", None),
            (&"subject".repeat(10), None),
        ] {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
    }
}
