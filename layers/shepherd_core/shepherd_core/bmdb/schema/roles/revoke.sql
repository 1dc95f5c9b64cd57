REVOKE ALL ON "{table}" FROM "{user}";
