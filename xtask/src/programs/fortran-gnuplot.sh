# Computes with Fortran and OpenMP, and plots with gnuplot.
# has: gfortran gnuplot
# apt: gfortran gnuplot-nox

printf 'program t\n integer :: i, s = 0\n!$omp parallel do reduction(+:s)\n do i = 1, 1000\n  s = s + i\n end do\n print *, s\n open(10, file="data.txt")\n do i = 1, 5\n  write(10, *) i, i**2\n end do\nend program\n' > t.f90
gfortran -fopenmp t.f90 -o t && OMP_NUM_THREADS=4 ./t; cat data.txt
gnuplot -e 'set terminal dumb 40 10; plot "data.txt" with lines title "squares"'; gnuplot -e 'set terminal svg; set output "p.svg"; plot sin(x)' && head -c 5 p.svg; rm t p.svg
