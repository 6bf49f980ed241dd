"""The operator's command: starts, shows, drains and explains a cluster; imports no engine."""
