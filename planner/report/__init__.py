"""What a study looks like to people; reads and changes nothing."""
