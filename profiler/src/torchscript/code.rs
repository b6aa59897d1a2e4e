//! Finds what a class takes and gives in the text that TorchScript keeps of it.

use super::Argument;

/// The arguments and the result of a class' `forward`, without `self`.
pub(super) fn forward(code: &str, class: &str) -> Option<(Vec<Argument>, String)> {
    let head = format!("class {class}(");
    let from = code.lines().scan(0, |at, line| {
        let start = *at;
        *at += line.len() + 1;
        Some((start, line))
    });
    let (start, line) = from.into_iter().find(|(_, line)| line.starts_with(&head))?;
    let body = code.get(start + line.len()..)?;
    // The next class or function at the margin ends it.
    let end = body.match_indices('\n').map(|(at, _)| at + 1);
    let end = end.into_iter().find(|at| body[*at..].starts_with(|c: char| c.is_ascii_alphabetic()));
    let body = &body[..end.unwrap_or(body.len())];
    let declared = body.split_once("\n  def forward(")?.1;
    let (arguments, rest) = declared.split_at_checked(closing(declared)?)?;
    let result = rest.strip_prefix(')')?.trim_start().strip_prefix("->")?;
    let result = result.get(..colon(result)?)?.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut all = split(arguments).into_iter();
    all.next()?; // the object itself
    Some((all.map(argument).collect::<Option<_>>()?, result))
}

fn argument(text: &str) -> Option<Argument> {
    let (name, kind) = text.split_once(':')?;
    let (kind, default) = match split_at_top(kind, '=') {
        Some((kind, _)) => (kind, true),
        None => (kind, false),
    };
    let kind = kind.split_whitespace().collect::<Vec<_>>().join(" ");
    let may_be_left_out = default;
    Some(Argument { name: name.trim().to_owned(), kind, may_be_left_out })
}

/// The parts between commas that stand in no brackets.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((part, after)) = split_at_top(rest, ',') {
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn split_at_top(text: &str, at: char) -> Option<(&str, &str)> {
    let place = at_top(text, |c| c == at)?;
    Some((&text[..place], &text[place + at.len_utf8()..]))
}

/// Where a bracket is closed that was opened before the text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return Some(at),
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn colon(text: &str) -> Option<usize> {
    at_top(text, |c| c == ':')
}

fn at_top(text: &str, wanted: impl Fn(char) -> bool) -> Option<usize> {
    let mut depth = 0_i64;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            c if depth == 0 && wanted(c) => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "class Before(Module):\n  def forward(self: __torch__.Before) -> int:\n    return 1\n\
                        class Net(Module):\n  __parameters__ = [\"w\", ]\n  w : Tensor\n  def helper(self: __torch__.Net,\n    x: int) -> int:\n    return x\n  def forward(self: __torch__.Net,\n    ids: Tensor,\n    more: Optional[Dict[str, Tensor]]=None,\n    k: int=3) -> Tuple[Tensor, List[Tensor]]:\n    return x\nclass Netto(Module):\n  x : int\n";

    #[test]
    fn a_signature_is_read_over_several_lines_with_defaults() {
        let (arguments, result) = forward(CODE, "Net").unwrap();
        let told: Vec<_> =
            arguments.iter().map(|a| (a.name.as_str(), a.kind.as_str(), a.may_be_left_out)).collect();
        assert_eq!(
            told,
            [("ids", "Tensor", false), ("more", "Optional[Dict[str, Tensor]]", true), ("k", "int", true)]
        );
        assert_eq!(result, "Tuple[Tensor, List[Tensor]]");
        assert_eq!(forward(CODE, "Before").unwrap().0.len(), 0);
        assert!(
            forward(CODE, "Netto").is_none() && forward(CODE, "Ne").is_none() && forward("", "Net").is_none()
        );
    }
}
