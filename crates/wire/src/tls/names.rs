//! Who may be what, by the names in certificates: that an authority signed one says only that it is of the cluster, or of the company.

use crate::codec::Role;
use crate::lost::Lost;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// What the name of a gateway's certificate begins with, where nothing else is set.
const GATEWAY: &str = "modelless-gateway";
/// The same of a scheduler's.
const SCHEDULER: &str = "modelless-scheduler";

/// Names that a certificate must have to come as a gateway, or as a scheduler. Each stands for itself and for what goes on after it
/// with a dot or a hyphen. No names at all: whoever has a certificate may.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleNames {
    /// Of those who send queries, and whom nodes fetch artefacts from.
    pub gateways: Vec<String>,
    /// Of those who say what is kept in memory.
    pub schedulers: Vec<String>,
}

impl Default for RoleNames {
    fn default() -> Self {
        Self { gateways: vec![GATEWAY.into()], schedulers: vec![SCHEDULER.into()] }
    }
}

impl RoleNames {
    /// Whether one with these names may come in such a role.
    pub(crate) fn allow(&self, role: Role, names: &[String]) -> Result<(), Lost> {
        let (wanted, setting, role) = match role {
            Role::Gateway => (&self.gateways, "tls.roles.gateways", "a gateway"),
            Role::Scheduler => (&self.schedulers, "tls.roles.schedulers", "a scheduler"),
            Role::Node { .. } => return Ok(()), // which is out of place anyway
        };
        let fits = |name: &String| wanted.iter().any(|wanted| stands_for(wanted, name));
        if wanted.is_empty() || names.iter().any(fits) {
            return Ok(());
        }
        let list = |names: &[String]| if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        Err(Lost::Misnamed { names: list(names), role, wanted: list(wanted), setting })
    }
}

fn stands_for(wanted: &str, name: &str) -> bool {
    let (wanted, name) = (wanted.to_ascii_lowercase(), name.to_ascii_lowercase());
    name.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
}

/// The host names that a certificate is for.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate);
    parsed.map(|parsed| parsed.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_itself_and_for_what_goes_on_after_it_and_for_no_other() {
        let names = RoleNames::default();
        let may = |role, name: &str| names.allow(role, &["x".into(), name.to_owned()]).is_ok();
        for name in ["modelless-gateway", "modelless-gateway-a", "Modelless-Gateway.prod.example"] {
            assert!(may(Role::Gateway, name) && !may(Role::Scheduler, name), "{name}");
        }
        for name in ["modelless-gatewayman", "my-modelless-gateway", "modelless-scheduler", ""] {
            assert!(!may(Role::Gateway, name), "{name}");
        }
        let any = RoleNames { gateways: Vec::new(), ..names };
        assert!(any.allow(Role::Gateway, &[]).is_ok() && any.allow(Role::Scheduler, &[]).is_err());
    }
}
