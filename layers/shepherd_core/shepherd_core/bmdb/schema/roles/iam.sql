GRANT rds_iam TO "{user}";
