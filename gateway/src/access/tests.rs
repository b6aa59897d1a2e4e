use super::*;
use modelless_store::{App, KeptSecret, Key, SecretKey, Tenant};

fn key(id: u32, digit: u8, scopes: Scopes) -> (SecretKey, Key) {
    let secret = SecretKey::new([digit; 32]);
    let KeptSecret { hash, prefix } = secret.kept();
    let key = Key {
        id: KeyId(id),
        app: AppId(id),
        name: format!("key {id}"),
        secret: KeptSecret { hash, prefix },
        scopes,
        created: UnixMicros(1),
        expires: None,
        revoked: None,
        successor: None,
    };
    (secret, key)
}

fn doors(keys: Vec<Key>) -> Doors {
    let tenants = [1, 2].map(|id| Tenant { id: TenantId(id), name: format!("t{id}") }).to_vec();
    let app =
        |id| App { id: AppId(id), tenant: TenantId(if id == 1 { 1 } else { 2 }), name: format!("a{id}") };
    Doors { locked: !keys.is_empty(), tenants, apps: (1..=3).map(app).collect(), keys, ..Doors::default() }
}

fn with(name: &'static str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.append(name, value.parse().unwrap());
    headers
}

fn reason(result: Result<Caller, Denied>) -> (u16, &'static str) {
    let Denied { error, .. } = result.unwrap_err();
    (error.status.as_u16(), error.reason)
}

#[test]
fn without_any_key_everybody_may_and_with_one_only_who_has_it() {
    let gate = Gate::new(doors(vec![]), Arc::default());
    assert!(gate.admit(&HeaderMap::new(), Needs::Operator).unwrap().is_operator());
    let (secret, known) = key(1, 7, Scopes::ALL);
    gate.set(doors(vec![known]));
    assert_eq!(reason(gate.admit(&HeaderMap::new(), Needs::QUERY)), (401, "no_key"));
    assert!(gate.admit(&HeaderMap::new(), Needs::Nothing).is_ok());
    for (name, value) in [
        ("authorization", format!("Bearer {}", secret.expose())),
        ("authorization", format!("bearer  {} ", secret.expose())),
        ("api-key", secret.expose().to_owned()),
        ("x-api-key", secret.expose().to_owned()),
    ] {
        let caller = gate.admit(&with(name, &value), Needs::Operator).unwrap();
        assert_eq!((caller.tenant, caller.key), (TenantId(1), Some(KeyId(1))));
    }
    // Nobody opens it again by losing the keys.
    gate.set(doors(vec![]));
    assert_eq!(reason(gate.admit(&HeaderMap::new(), Needs::QUERY)), (401, "no_key"));
    assert_eq!(reason(gate.admit(&with("api-key", secret.expose()), Needs::QUERY)), (401, "unknown_key"));
}

#[test]
fn a_key_opens_what_its_scopes_say_and_only_the_first_tenant_sees_machines() {
    let (asks, first) = key(1, 1, [Scope::Query].into_iter().collect());
    let (other, second) = key(2, 2, Scopes::ALL);
    let gate = Gate::new(doors(vec![first, second]), Arc::default());
    let asks = with("api-key", asks.expose());
    assert!(gate.admit(&asks, Needs::QUERY).is_ok());
    for needs in [Needs::REGISTER, Needs::ADMIN, Needs::Operator] {
        assert_eq!(reason(gate.admit(&asks, needs)), (403, "missing_scope"));
    }
    let other = with("api-key", other.expose());
    assert_eq!(gate.admit(&other, Needs::ADMIN).unwrap().tenant, TenantId(2));
    assert_eq!(reason(gate.admit(&other, Needs::Operator)), (403, "missing_scope"));
}

#[test]
fn what_has_ended_opens_nothing_and_says_so_without_the_secret() {
    let (old, mut expired) = key(1, 1, Scopes::ALL);
    expired.expires = Some(UnixMicros(2));
    let (gone, mut revoked) = key(2, 2, Scopes::ALL);
    revoked.revoked = Some(UnixMicros(2));
    let (later, mut valid) = key(3, 3, Scopes::ALL);
    valid.expires = Some(UnixMicros(i64::MAX.unsigned_abs()));
    let gate = Gate::new(doors(vec![expired, revoked, valid]), Arc::default());
    for (secret, why) in [(old, "expired_key"), (gone, "revoked_key")] {
        let error = gate.admit(&with("api-key", secret.expose()), Needs::QUERY).unwrap_err().error;
        assert_eq!((error.status.as_u16(), error.reason), (401, why));
        assert!(!error.message.contains(secret.expose()), "{}", error.message);
    }
    assert!(gate.admit(&with("api-key", later.expose()), Needs::QUERY).is_ok());
}

#[test]
fn two_different_keys_or_none_that_is_one_are_refused() {
    let (secret, known) = key(1, 1, Scopes::ALL);
    let gate = Gate::new(doors(vec![known]), Arc::default());
    let mut both = with("api-key", secret.expose());
    both.append("authorization", format!("Bearer {}", secret.expose()).parse().unwrap());
    assert!(gate.admit(&both, Needs::QUERY).is_ok(), "the same one twice");
    both.append("x-api-key", "mlk_other".parse().unwrap());
    assert_eq!(reason(gate.admit(&both, Needs::QUERY)), (401, "two_keys"));
    let long = secret.expose().repeat(9);
    for (name, value, why) in [
        ("authorization", "Basic dTpw", "no_key"),
        ("authorization", "Bearer", "no_key"),
        ("authorization", "Bearer ", "no_key"),
        ("api-key", "", "no_key"),
        ("api-key", "mlk_no", "unknown_key"),
        ("api-key", long.as_str(), "unknown_key"),
    ] {
        assert_eq!(reason(gate.admit(&with(name, value), Needs::QUERY)), (401, why), "{name}: {value}");
    }
}
