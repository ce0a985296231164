"""From times at the makers' rates to times that programs take: coefficients, how they are found, how far they hold."""
