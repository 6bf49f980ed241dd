"""What the shells share: reactor, lanes, mailbox, phone book client, recorder, systemd, log."""
