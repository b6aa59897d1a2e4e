//! What was done, by whom.

use super::store_suite;
use crate::backends::Backend;
use modelless_store::{AUDIT_KEPT, Deed, REFUSED_KEPT, STRANGERS, UnixMicros};
use modelless_types::{KeyId, TenantId};

store_suite! {
    deeds_come_back_newest_first_and_each_tenant_sees_its_own,
    a_tenants_oldest_deeds_are_forgotten_and_nobody_elses,
    what_was_refused_pushes_out_nothing_that_was_done,
}

fn deed(number: u64, tenant: u32) -> Deed {
    Deed {
        at: UnixMicros(number),
        tenant: TenantId(tenant),
        key: (tenant > 1).then_some(KeyId(7)),
        who: "mlk_01234567 (ann)".to_owned(),
        action: "DELETE /v1/models/{task}/{model}".to_owned(),
        target: format!("/v1/models/fashion/{number}"),
        status: 200,
    }
}

async fn deeds_come_back_newest_first_and_each_tenant_sees_its_own(backend: Backend) {
    let store = backend.open().await;
    store.audit().note(vec![deed(1, 1), deed(2, 2)]).await.unwrap();
    let long = Deed { target: "x\n".repeat(1_000), ..deed(3, 1) };
    store.audit().note(vec![long]).await.unwrap();
    let all = backend.open().await.audit().noted(None, None, 10).await.unwrap();
    assert_eq!(all.iter().map(|entry| entry.deed.at.0).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!((&all[2].deed, &all[1].deed), (&deed(1, 1), &deed(2, 2)));
    assert!(all[0].deed.target.len() <= 1_000 && !all[0].deed.target.contains('\n'), "cut, and one line");
    let of = store.audit().noted(Some(TenantId(2)), None, 10).await.unwrap();
    assert_eq!(of, [all[1].clone()]);
    let page = store.audit().noted(None, Some(all[0].seq), 1).await.unwrap();
    assert_eq!(page, [all[1].clone()]);
}

async fn a_tenants_oldest_deeds_are_forgotten_and_nobody_elses(backend: Backend) {
    let store = backend.open().await;
    store.audit().note(vec![deed(1, 2), deed(1, 1)]).await.unwrap();
    let rest: Vec<Deed> = (1..AUDIT_KEPT).map(|at| deed(at + 1, 1)).collect();
    store.audit().note(rest).await.unwrap();
    let of = async |tenant: u32| store.audit().noted(Some(TenantId(tenant)), None, u32::MAX).await.unwrap();
    assert_eq!(of(1).await.last().unwrap().deed.at, UnixMicros(1), "there is room for just so many");
    store.audit().note(vec![deed(0, 1)]).await.unwrap();
    let kept = of(1).await;
    assert_eq!((kept.len() as u64, kept.last().unwrap().deed.at), (AUDIT_KEPT, UnixMicros(2)));
    assert_eq!(of(2).await.len(), 1, "another tenant cannot push it out");
}

async fn what_was_refused_pushes_out_nothing_that_was_done(backend: Backend) {
    let store = backend.open().await;
    store.audit().note(vec![deed(0, 1)]).await.unwrap();
    let refused = |at: u64| Deed { status: [401, 403][usize::try_from(at % 2).unwrap()], ..deed(at, 1) };
    store.audit().note((1..=REFUSED_KEPT + 5).map(refused).collect()).await.unwrap();
    store.audit().note(vec![Deed { tenant: STRANGERS, ..refused(1) }]).await.unwrap();
    let kept = store.audit().noted(Some(TenantId(1)), None, u32::MAX).await.unwrap();
    let [.., oldest, done] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!((done.deed.status, done.deed.at), (200, UnixMicros(0)));
    assert_eq!((kept.len() as u64 - 1, oldest.deed.at), (REFUSED_KEPT, UnixMicros(6)));
    assert_eq!(store.audit().noted(Some(STRANGERS), None, 10).await.unwrap().len(), 1);
}
