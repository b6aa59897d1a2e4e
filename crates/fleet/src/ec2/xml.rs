//! Reads what EC2 answers: XML as far as it is used there, within bounds.
//!
//! Elements and text, character references and CDATA. Attributes are passed over, since nothing that is asked for stands in one.
//! A document type is refused: what it may define has no bound.

/// Elements within elements.
const DEPTH: usize = 32;
/// Elements in all.
const ELEMENTS: usize = 200_000;

/// An element, by its name without any prefix.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Element {
    pub(super) name: String,
    /// What stands directly in it.
    pub(super) text: String,
    pub(super) children: Vec<Element>,
}

impl Element {
    /// The first child of this name.
    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The element at the end of a path of names.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Element> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    /// The text at the end of a path; nothing where it is empty.
    pub(super) fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path).map(|element| element.text.trim()).filter(|text| !text.is_empty())
    }

    /// The items of a list at the end of a path.
    pub(super) fn items(&self, path: &[&str]) -> impl Iterator<Item = &Element> {
        self.at(path).into_iter().flat_map(|list| &list.children).filter(|child| child.name == "item")
    }
}

/// The root element.
pub(super) fn read(text: &str) -> Result<Element, String> {
    let mut rest = text.trim_start_matches('\u{feff}');
    let mut open: Vec<Element> = Vec::new();
    let mut elements = 0;
    loop {
        let Some((before, tag)) = rest.split_once('<') else {
            return Err("it ends in the middle".to_owned());
        };
        match open.last_mut() {
            Some(element) => unescape(before, &mut element.text)?,
            None if before.trim().is_empty() => {}
            None => return Err("it does not begin with an element".to_owned()),
        }
        if let Some(comment) = tag.strip_prefix("!--") {
            rest = behind(comment, "-->")?.1;
        } else if let Some(data) = tag.strip_prefix("![CDATA[") {
            let (data, after) = behind(data, "]]>")?;
            open.last_mut().ok_or("text stands outside of elements")?.text.push_str(data);
            rest = after;
        } else if let Some(instruction) = tag.strip_prefix('?') {
            rest = behind(instruction, "?>")?.1;
        } else if tag.starts_with('!') {
            return Err("it has a document type".to_owned());
        } else {
            let (inner, after) = tag_end(tag)?;
            rest = after;
            let closed = if let Some(name) = inner.strip_prefix('/') {
                let element = open.pop().ok_or("something ends that did not begin")?;
                if local(name.trim()) != element.name {
                    return Err(format!("<{}> does not end", element.name));
                }
                Some(element)
            } else {
                elements += 1;
                if open.len() >= DEPTH || elements > ELEMENTS {
                    return Err("it is too deep, or has too many elements".to_owned());
                }
                let empty = inner.ends_with('/');
                let name = inner.trim_end_matches('/').split_whitespace().next().unwrap_or_default();
                let element = Element { name: local(name).to_owned(), ..Element::default() };
                if element.name.is_empty() {
                    return Err("an element has no name".to_owned());
                }
                if empty {
                    Some(element)
                } else {
                    open.push(element);
                    None
                }
            };
            if let Some(closed) = closed {
                match open.last_mut() {
                    Some(parent) => parent.children.push(closed),
                    None => return Ok(closed),
                }
            }
        }
    }
}

/// A name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

fn behind<'a>(text: &'a str, end: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(end).ok_or_else(|| format!("no {end:?} follows"))
}

/// What stands in a tag and what behind it; a `>` within quotes ends none.
fn tag_end(tag: &str) -> Result<(&str, &str), String> {
    let mut quote = None;
    for (at, c) in tag.char_indices() {
        match (quote, c) {
            (None, '>') => return Ok((&tag[..at], &tag[at + 1..])),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some(_), _) => {}
        }
    }
    Err("a tag does not end".to_owned())
}

fn unescape(text: &str, into: &mut String) -> Result<(), String> {
    let mut rest = text;
    while let Some((before, reference)) = rest.split_once('&') {
        into.push_str(before);
        let (name, after) = reference.split_once(';').ok_or("a reference does not end")?;
        into.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let digits = name.strip_prefix('#').ok_or_else(|| format!("&{name}; is unknown"))?;
                let number = match digits.strip_prefix('x') {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => digits.parse(),
                };
                number.ok().and_then(char::from_u32).ok_or_else(|| format!("&{name}; is no character"))?
            }
        });
        rest = after;
    }
    into.push_str(rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_text_and_lists_are_read() {
        let root = read(
            "<?xml version=\"1.0\"?>\n<!-- > -->\n<R xmlns=\"http://ec2\" a='>'>\n <set>\n  <item><key>a &amp; b</key><value/></item>\
             <item><key>&#65;&#x42;<![CDATA[<c>]]></key></item><other/></set><n:name>x</n:name></R>",
        )
        .unwrap();
        assert_eq!(root.name, "R");
        let keys: Vec<_> = root.items(&["set"]).filter_map(|item| item.text_at(&["key"])).collect();
        assert_eq!(keys, ["a & b", "AB<c>"]);
        assert_eq!(root.text_at(&["name"]), Some("x"));
        assert_eq!((root.text_at(&["set", "item", "value"]), root.text_at(&["nowhere"])), (None, None));
    }

    #[test]
    fn what_is_no_answer_is_refused_with_what_is_wrong() {
        let deep = "<a>".repeat(40);
        let many = format!("<a>{}</a>", "<b/>".repeat(ELEMENTS));
        for (text, told) in [
            ("", "ends in the middle"),
            ("<a><b></a></b>", "<b> does not end"),
            ("nonsense <a/>", "does not begin"),
            ("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>", "document type"),
            ("<a>&b;</a>", "&b; is unknown"),
            ("<a>&#xD800;</a>", "no character"),
            ("<a", "a tag does not end"),
            ("</a>", "did not begin"),
            ("< >", "no name"),
            (deep.as_str(), "too deep"),
            (many.as_str(), "too many"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_comes_makes_it_panic(text in "[<>/&;#xa!\\[\\]? '\"=-]{0,80}") {
            let _ = read(&text);
        }

        #[test]
        fn what_was_escaped_is_read_as_it_was(text in "\\PC{0,40}") {
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
            prop_assert_eq!(read(&format!("<a>{escaped}</a>")).unwrap().text, text);
        }
    }
}
