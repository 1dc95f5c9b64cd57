"""What a month of Shepherd costs on AWS."""
