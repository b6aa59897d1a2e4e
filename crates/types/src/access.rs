//! What a key allows.

use core::fmt;
use serde::{Deserialize, Serialize};

/// One thing that a key may allow. None of them contains another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Ask tasks, and look at what may answer.
    Query,
    /// Make tasks, bring models, say which version answers.
    Register,
    /// Make and end keys, look at and steer what runs.
    Admin,
}

impl Scope {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Query, Self::Register, Self::Admin];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Register => "register",
            Self::Admin => "admin",
        }
    }

    /// From its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == text)
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Query => 1,
            Self::Register => 2,
            Self::Admin => 4,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of scopes. Written with commas: `query,admin`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// All there are.
    pub const ALL: Self = Self(7);

    /// Whether it holds this one.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The same without one.
    pub const fn without(self, scope: Scope) -> Self {
        Self(self.0 & !scope.bit())
    }

    /// Whether there is none in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of these are in it.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Each of them, always in the same order.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.has(*scope))
    }

    /// From names with commas between them; `None` if one is none.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').map(|name| Scope::parse(name.trim())).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |all, scope| all | scope.bit()))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, scope) in self.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            f.write_str(scope.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn scopes_are_read_as_they_are_written_and_a_wrong_one_is_none() {
        for scopes in
            [Scopes::ALL, Scopes::ALL.without(Scope::Register), [Scope::Query].into_iter().collect()]
        {
            assert_eq!(Scopes::parse(&scopes.to_string()), Some(scopes));
        }
        assert_eq!(Scopes::ALL.iter().collect::<Scopes>(), Scopes::ALL);
        assert_eq!((Scopes::parse("query,all"), Scopes::parse("")), (None, None));
        let asks = Scopes::parse("query").unwrap();
        assert!(asks.has(Scope::Query) && !asks.has(Scope::Admin) && !asks.contains(Scopes::ALL));
        assert!(asks.without(Scope::Query).is_empty());
    }
}
