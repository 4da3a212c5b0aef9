"""What Fractus is raced against: plain, well-known networks, trained with the same care."""
