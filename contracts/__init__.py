"""What crosses a wire: values, names and rules that workflows, activities and clients share. No I/O."""
