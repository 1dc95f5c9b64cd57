ALTER ROLE "{user}" PASSWORD '{verifier}';
