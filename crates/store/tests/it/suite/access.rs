//! Who may ask: tenants, applications and keys.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{a_task, model};
use modelless_store::{
    ENDED_KEYS_KEPT, Error, Grant, Key, NewKey, Owner, Policy, PolicyBounds, PolicyGoals, PolicyOf,
    PolicyShare, Quota, Rotation, SecretKey, Store, UPLOAD_KEPT, UPLOADS_MAX, UnixMicros, Upload, Visibility,
};
use modelless_types::{
    Accuracy, AppId, CostPer1k, KeyId, Micros, Prefer, Scope, Scopes, Share, TaskId, TenantId,
};

store_suite! {
    doors_are_open_until_the_first_key_and_never_again,
    a_key_comes_back_as_it_was_made_and_without_its_secret,
    both_keys_are_valid_for_the_stated_time_after_a_rotation,
    a_key_is_ended_once,
    the_first_key_allows_to_make_more_and_does_not_expire,
    tenants_and_applications_are_made_once,
    what_a_tenant_uploaded_is_its_own_for_a_day,
    a_change_of_keys_is_one_of_the_catalogue,
    a_quota_is_kept_until_another_takes_its_place,
    a_policy_is_kept_for_whom_and_what_it_was_said_and_goes_with_its_task,
    no_more_of_a_task_is_reserved_than_there_is,
    models_of_a_name_are_used_by_whom_their_owner_says,
    ended_keys_are_forgotten_once_many_came_after_them,
}

fn new(digit: u8, at: u64) -> NewKey {
    NewKey {
        app: AppId::DEFAULT,
        name: format!("key {digit}"),
        secret: SecretKey::new([digit; 32]).kept(),
        scopes: Scopes::ALL,
        at: UnixMicros(at),
        expires: None,
    }
}

async fn keys(store: &dyn Store) -> Vec<Key> {
    store.access().doors().await.unwrap().keys
}

async fn doors_are_open_until_the_first_key_and_never_again(backend: Backend) {
    let store = backend.open().await;
    assert!(!store.access().doors().await.unwrap().locked);
    let key = store.access().create_key(new(1, 5)).await.unwrap();
    assert!(store.access().doors().await.unwrap().locked);
    store.access().revoke_key(key.id, UnixMicros(6)).await.unwrap();
    assert!(backend.open().await.access().doors().await.unwrap().locked, "an ended key is not no key");
}

async fn a_key_comes_back_as_it_was_made_and_without_its_secret(backend: Backend) {
    let store = backend.open().await;
    store.access().create_key(new(1, 5)).await.unwrap();
    let scopes = [Scope::Query].into_iter().collect();
    let wanted = NewKey { scopes, expires: Some(UnixMicros(9)), ..new(2, 6) };
    let made = store.access().create_key(wanted.clone()).await.unwrap();
    let known = keys(&*backend.open().await).await;
    assert_eq!(known[1], made);
    assert_eq!(
        (known[1].scopes, known[1].expires, &known[1].secret),
        (scopes, wanted.expires, &wanted.secret)
    );
    let secret = SecretKey::new([2; 32]);
    assert!(!format!("{known:?}").contains(secret.expose()));
    assert!(made.valid(UnixMicros(8)) && !made.valid(UnixMicros(9)));
    missing(store.access().create_key(NewKey { app: AppId(99), ..new(3, 7) }).await);
    refused(store.access().create_key(NewKey { scopes: Scopes::default(), ..new(3, 7) }).await);
    refused(store.access().create_key(NewKey { expires: Some(UnixMicros(7)), ..new(3, 7) }).await);
    refused(store.access().create_key(NewKey { name: String::new(), ..new(3, 7) }).await);
    assert_eq!(keys(&*store).await.len(), 2);
}

async fn both_keys_are_valid_for_the_stated_time_after_a_rotation(backend: Backend) {
    let store = backend.open().await;
    let first = store.access().create_key(new(1, 10)).await.unwrap();
    let rotation = |key: KeyId, digit: u8, both_until: u64| Rotation {
        key,
        secret: SecretKey::new([digit; 32]).kept(),
        at: UnixMicros(20),
        both_until: UnixMicros(both_until),
        expires: None,
    };
    let (old, new_one) = store.access().rotate_key(rotation(first.id, 2, 30)).await.unwrap();
    assert_eq!((old.id, old.successor, new_one.successor), (first.id, Some(new_one.id), None));
    assert_eq!((new_one.app, new_one.scopes, &new_one.name), (first.app, first.scopes, &first.name));
    for (at, both) in [(29, true), (30, false)] {
        assert_eq!(old.valid(UnixMicros(at)), both);
        assert!(new_one.valid(UnixMicros(at)));
    }
    assert_eq!(keys(&*store).await, [old, new_one.clone()]);
    let again = store.access().rotate_key(rotation(first.id, 3, 30)).await.unwrap_err();
    assert!(matches!(again, Error::RotatedBefore { .. }), "{again}");
    assert!(again.to_string().contains(&new_one.secret.prefix), "it names the one that is left: {again}");
    missing(store.access().rotate_key(rotation(KeyId(99), 3, 30)).await);
    // One that would have ended sooner is not made to live longer.
    let wanted = NewKey { expires: Some(UnixMicros(25)), ..new(4, 11) };
    let short = store.access().create_key(wanted).await.unwrap();
    let (old, _) = store.access().rotate_key(rotation(short.id, 5, 30)).await.unwrap();
    assert_eq!(old.expires, Some(UnixMicros(25)));
    store.access().revoke_key(new_one.id, UnixMicros(20)).await.unwrap();
    let ended =
        store.access().rotate_key(rotation(new_one.id, 6, 30)).await.expect_err("it opens nothing any more");
    assert!(matches!(ended, Error::KeyEnded { .. }), "{ended}");
}

async fn a_key_is_ended_once(backend: Backend) {
    let store = backend.open().await;
    let key = store.access().create_key(new(1, 10)).await.unwrap();
    let ended = store.access().revoke_key(key.id, UnixMicros(20)).await.unwrap();
    assert_eq!((ended.revoked, ended.valid(UnixMicros(1))), (Some(UnixMicros(20)), false));
    let again = store.access().revoke_key(key.id, UnixMicros(30)).await.unwrap();
    assert_eq!(again, ended);
    missing(store.access().revoke_key(KeyId(99), UnixMicros(1)).await);
}

async fn the_first_key_allows_to_make_more_and_does_not_expire(backend: Backend) {
    let store = backend.open().await;
    refused(
        store.access().create_key(NewKey { scopes: Scopes::ALL.without(Scope::Admin), ..new(1, 5) }).await,
    );
    refused(store.access().create_key(NewKey { expires: Some(UnixMicros(99)), ..new(1, 5) }).await);
    assert!(!store.access().doors().await.unwrap().locked, "a key that was refused locks nothing");
    store.access().create_key(new(1, 5)).await.unwrap();
    store
        .access()
        .create_key(NewKey { scopes: Scopes::ALL.without(Scope::Admin), ..new(2, 5) })
        .await
        .unwrap();
}

async fn tenants_and_applications_are_made_once(backend: Backend) {
    let store = backend.open().await;
    let tenant = store.access().create_tenant("team-a").await.unwrap();
    assert_eq!(tenant.id, TenantId(2));
    let again = store.access().create_tenant("team-a").await.unwrap_err();
    assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
    assert!(again.to_string().ends_with("choose another name"), "nobody can remove one: {again}");
    for taken_for_more in ["", "default/fashion", "team a", "Team"] {
        refused(store.access().create_tenant(taken_for_more).await);
        refused(store.access().app(tenant.id, taken_for_more).await);
    }
    let app = store.access().app(tenant.id, "shop").await.unwrap();
    assert_eq!(store.access().app(tenant.id, "shop").await.unwrap(), app);
    assert_ne!(store.access().app(TenantId::DEFAULT, "shop").await.unwrap().id, app.id);
    missing(store.access().app(TenantId(99), "shop").await);
    let doors = store.access().doors().await.unwrap();
    assert_eq!(doors.tenants.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["default", "team-a"]);
    let catalog = store.catalog().await.unwrap();
    assert_eq!((catalog.tenants, catalog.apps), (doors.tenants, doors.apps.clone()));
    assert!(doors.apps.iter().any(|app| (app.tenant, app.name.as_str()) == (tenant.id, "default")));
}

async fn a_quota_is_kept_until_another_takes_its_place(backend: Backend) {
    let store = backend.open().await;
    let version = store.catalog_version().await.unwrap();
    let quota =
        Quota { requests_per_s: Some(10), burst: Some(2), artefact_bytes: Some(1 << 40), ..Quota::default() };
    store.access().set_quota(Owner::Tenant(TenantId::DEFAULT), quota.clone()).await.unwrap();
    let other = Quota { concurrency: Some(3), highest_priority: Some(4), ..Quota::default() };
    store.access().set_quota(Owner::App(AppId::DEFAULT), other.clone()).await.unwrap();
    assert!(store.catalog_version().await.unwrap() > version);
    let quotas = async || backend.open().await.access().doors().await.unwrap().quotas;
    let both = [(Owner::Tenant(TenantId::DEFAULT), quota), (Owner::App(AppId::DEFAULT), other)];
    assert_eq!(quotas().await, both.into_iter().collect());
    store.access().set_quota(Owner::Tenant(TenantId::DEFAULT), Quota::default()).await.unwrap();
    assert_eq!(quotas().await.len(), 1, "nothing is bounded: no quota");
    missing(store.access().set_quota(Owner::Tenant(TenantId(99)), Quota::default()).await);
    missing(store.access().set_quota(Owner::App(AppId(99)), Quota::default()).await);
    for wrong in [
        Quota { requests_per_s: Some(0), ..Quota::default() },
        Quota { burst: Some(1), ..Quota::default() },
        Quota { body_bytes: Some(0), ..Quota::default() },
        Quota { highest_priority: Some(0), ..Quota::default() },
        Quota { highest_priority: Some(10), ..Quota::default() },
    ] {
        refused(store.access().set_quota(Owner::App(AppId::DEFAULT), wrong).await);
    }
}

async fn a_policy_is_kept_for_whom_and_what_it_was_said_and_goes_with_its_task(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let version = store.catalog_version().await.unwrap();
    let bounds = PolicyBounds { max_cost: Some(CostPer1k(7)), ..PolicyBounds::default() };
    let tight = Policy { bounds, ..Policy::default() };
    let goals = PolicyGoals {
        accuracy: Accuracy::from_ppm(900_000),
        latency: Some(Micros(50_000)),
        prefer: Some(Prefer::Cost),
        ..PolicyGoals::default()
    };
    let own = Policy { goals, model: Some("m@2".to_owned()), ..Policy::default() };
    let (all, app) = (Owner::Tenant(TenantId::DEFAULT), Owner::App(AppId::DEFAULT));
    let of = |owner, task| PolicyOf { owner, task };
    store.access().set_policy(of(all, None), tight.clone()).await.unwrap();
    store.access().set_policy(of(app, Some(task)), own.clone()).await.unwrap();
    assert!(store.catalog_version().await.unwrap() > version);
    let policies = async || backend.open().await.access().doors().await.unwrap().policies;
    let both = [(of(all, None), tight.clone()), (of(app, Some(task)), own.clone())];
    assert_eq!(policies().await, both.into_iter().collect());
    store.access().set_policy(of(app, Some(task)), tight.clone()).await.unwrap();
    assert_eq!(policies().await[&of(app, Some(task))], tight, "another took its place");
    store.access().set_policy(of(all, None), Policy::default()).await.unwrap();
    assert_eq!(policies().await.len(), 1, "it says nothing any more");
    missing(store.access().set_policy(of(Owner::Tenant(TenantId(99)), None), tight.clone()).await);
    missing(store.access().set_policy(of(Owner::App(AppId(99)), None), tight.clone()).await);
    missing(store.access().set_policy(of(all, Some(TaskId(99))), tight.clone()).await);
    let never = PolicyGoals { latency: Some(Micros(0)), ..PolicyGoals::default() };
    refused(store.access().set_policy(of(app, None), own).await);
    for wrong in [
        Policy { goals: never, ..Policy::default() },
        Policy { variant: Some(String::new()), ..Policy::default() },
        Policy { model: Some("x".repeat(201)), ..Policy::default() },
    ] {
        refused(store.access().set_policy(of(app, Some(task)), wrong).await);
    }
    store.remove_task(task).await.unwrap();
    assert!(policies().await.is_empty(), "a policy for a task goes with it");
}

async fn no_more_of_a_task_is_reserved_than_there_is(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let shop = store.access().app(TenantId::DEFAULT, "shop").await.unwrap().id;
    let access = store.access();
    let reserves = async |app, task, percent: u32| {
        let reserve = Share::from_ppm(percent * 10_000);
        let share = PolicyShare { reserve, weight: Some(7) };
        access
            .set_policy(PolicyOf { owner: Owner::App(app), task }, Policy { share, ..Policy::default() })
            .await
    };
    reserves(AppId::DEFAULT, None, 60).await.unwrap();
    reserves(AppId::DEFAULT, Some(task), 20).await.unwrap();
    let kept = backend.open().await.access().doors().await.unwrap().policies;
    let of = PolicyOf { owner: Owner::App(AppId::DEFAULT), task: Some(task) };
    assert_eq!(kept[&of].share, PolicyShare { weight: Some(7), reserve: Share::from_ppm(200_000) });
    let over = |done: Result<(), Error>, of: Option<TaskId>, percent: u64| match done {
        Err(Error::OverReserved { task, ppm }) => assert_eq!((task, ppm), (of, percent * 10_000)),
        other => panic!("{other:?}"),
    };
    over(reserves(shop, None, 41).await, None, 101);
    reserves(shop, Some(task), 80).await.unwrap();
    over(reserves(shop, Some(task), 81).await, Some(task), 101);
    // Without it what is said for all tasks would hold here.
    over(access.set_policy(of, Policy::default()).await, Some(task), 140);
    let kept = access.doors().await.unwrap().policies;
    assert_eq!(kept.len(), 3, "what was refused changed nothing: {kept:?}");
    reserves(shop, None, 40).await.unwrap();
    for (owner, share) in [
        (Owner::Tenant(TenantId::DEFAULT), PolicyShare { weight: Some(2), reserve: None }),
        (Owner::App(shop), PolicyShare { weight: Some(0), reserve: None }),
        (Owner::App(shop), PolicyShare { weight: Some(1_001), reserve: None }),
        (Owner::App(shop), PolicyShare { weight: None, reserve: Share::from_ppm(9_999) }),
    ] {
        let policy = Policy { share, ..Policy::default() };
        refused(access.set_policy(PolicyOf { owner, task: None }, policy).await);
    }
    let goals = PolicyGoals { prefer: Some(Prefer::Cost), ..PolicyGoals::default() };
    let pinned = Policy { goals, model: Some("\"reserve\"".to_owned()), ..Policy::default() };
    access.set_policy(of, Policy { share: kept[&of].share, ..pinned }).await.unwrap();
}

async fn models_of_a_name_are_used_by_whom_their_owner_says(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    store.register_model(model(task, "m", &["v"])).await.unwrap();
    let tenant = store.access().create_tenant("b").await.unwrap().id;
    let grants = async || backend.open().await.access().doors().await.unwrap().grants;
    let grant = |to| Grant { task, name: "m".to_owned(), to };
    assert_eq!(grants().await, []);
    let twice = Visibility::Shared(vec![tenant, TenantId::DEFAULT, tenant]);
    store.access().share_model(task, "m", twice).await.unwrap();
    assert_eq!(grants().await, [grant(Some(TenantId::DEFAULT)), grant(Some(tenant))]);
    let version = store.catalog_version().await.unwrap();
    store.access().share_model(task, "m", Visibility::Public).await.unwrap();
    assert_eq!(grants().await, [grant(None)]);
    assert!(store.catalog_version().await.unwrap() > version);
    missing(store.access().share_model(task, "n", Visibility::Public).await);
    missing(store.access().share_model(task, "m", Visibility::Shared(vec![TenantId(99)])).await);
    assert_eq!(grants().await, [grant(None)], "what was refused changed nothing");
    store.access().share_model(task, "m", Visibility::Private).await.unwrap();
    assert_eq!(grants().await, []);
}

async fn what_a_tenant_uploaded_is_its_own_for_a_day(backend: Backend) {
    let store = backend.open().await;
    let day = u64::try_from(UPLOAD_KEPT.as_micros()).unwrap();
    let upload = |tenant: u32, number: u64, at: u64| Upload {
        tenant: TenantId(tenant),
        sha256: format!("{number:064x}"),
        bytes: number << 33,
        at: UnixMicros(at),
    };
    let of = async |tenant: u32, since: u64| {
        let known = store.access().uploads(TenantId(tenant), UnixMicros(since)).await.unwrap();
        known.into_values().map(|bytes| bytes >> 33).collect::<Vec<_>>()
    };
    let note = async |upload: Upload| store.access().note_upload(upload).await;
    let version = store.catalog_version().await.unwrap();
    note(upload(1, 7, 10)).await.unwrap();
    note(upload(1, 8, 20)).await.unwrap();
    note(upload(2, 7, 20)).await.unwrap();
    assert_eq!((of(1, 0).await, of(1, 11).await, of(2, 0).await), (vec![7, 8], vec![8], vec![7]));
    assert_eq!(store.catalog_version().await.unwrap(), version, "nobody has to look anew");
    // Brought again it counts from then; the others are forgotten.
    note(upload(1, 7, 15 + day)).await.unwrap();
    note(upload(1, 9, 21 + day)).await.unwrap();
    assert_eq!((of(1, 0).await, of(2, 0).await), (vec![7, 9], vec![]));
    refused(note(Upload { sha256: "..".to_owned(), ..upload(1, 1, 9) }).await);
    for number in 0..UPLOADS_MAX as u64 {
        note(upload(3, 100 + number, 21 + day)).await.unwrap();
    }
    let full = note(upload(3, 1, 21 + day)).await.unwrap_err();
    assert!(matches!(full, Error::Full { limit: UPLOADS_MAX, whose: "of this tenant", .. }), "{full}");
    assert_eq!(of(3, 0).await.len(), UPLOADS_MAX);
    note(upload(3, 100, 21 + day)).await.unwrap();
}

async fn a_change_of_keys_is_one_of_the_catalogue(backend: Backend) {
    let store = backend.open().await;
    let mut before = store.catalog_version().await.unwrap();
    let key = store.access().create_key(new(1, 5)).await.unwrap();
    let rotation = Rotation {
        key: key.id,
        secret: SecretKey::new([9; 32]).kept(),
        at: UnixMicros(6),
        both_until: UnixMicros(7),
        expires: None,
    };
    let mut changed = async |what: &str| {
        let now = store.catalog_version().await.unwrap();
        assert!(now > before, "{what}");
        before = now;
    };
    changed("made").await;
    store.access().rotate_key(rotation).await.unwrap();
    changed("rotated").await;
    store.access().revoke_key(key.id, UnixMicros(8)).await.unwrap();
    changed("ended").await;
    store.access().create_tenant("b").await.unwrap();
    changed("tenant").await;
}

async fn ended_keys_are_forgotten_once_many_came_after_them(backend: Backend) {
    let store = backend.open().await;
    let first = store.access().create_key(new(1, 5)).await.unwrap();
    let mut last = first.id;
    for number in 0..u32::try_from(ENDED_KEYS_KEPT).unwrap() + 3 {
        let mut random = [7; 32];
        random[..4].copy_from_slice(&number.to_le_bytes());
        let key = NewKey {
            secret: SecretKey::new(random).kept(),
            expires: Some(UnixMicros(10 + u64::from(number))),
            ..new(2, 9 + u64::from(number))
        };
        last = store.access().create_key(key).await.unwrap().id;
    }
    let known = keys(&*store).await;
    assert_eq!(known.len(), ENDED_KEYS_KEPT + 2, "all that ended but the oldest, and two that are valid");
    assert_eq!((known[0].id, known.last().unwrap().id), (first.id, last));
}
