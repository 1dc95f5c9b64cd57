-- The audit trail by time, from its old end: what is older than the retention goes, a bounded number of rows at a time.
CREATE INDEX work_history_by_time ON work_history (timestamp);
