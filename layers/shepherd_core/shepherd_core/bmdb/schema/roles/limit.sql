ALTER ROLE "{user}" CONNECTION LIMIT {connections};
