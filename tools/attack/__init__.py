"""A standing attack: random uses, extreme numbers and damage, against simple models of what must hold."""
