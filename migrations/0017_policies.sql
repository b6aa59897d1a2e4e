-- What holds for the queries of a tenant or an application beside what they say themselves: JSON. `app` 0 is all of the tenant's
-- applications, `task` 0 all tasks. A row that says nothing is not there.
CREATE TABLE policies (
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    app BIGINT NOT NULL,
    task BIGINT NOT NULL,
    policy TEXT NOT NULL,
    PRIMARY KEY (tenant, app, task)
);
