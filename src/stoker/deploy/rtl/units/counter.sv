// Counts COUNT steps, again and again; `last` while the step to come is the last of a round. As narrow as COUNT needs.
module counter #(
    parameter int COUNT = 4
) (
    input  logic clk,
    input  logic rst,
    input  logic step,
    output logic last
);
    generate
        if (COUNT == 1) begin : one
            assign last = 1'b1;
            logic unused;
            assign unused = &{1'b0, clk, rst, step};
        end else begin : more
            localparam int CW = $clog2(COUNT);
            logic [CW-1:0] count;
            assign last = count == CW'(COUNT - 1);
            always_ff @(posedge clk) begin
                if (rst) count <= '0;
                else if (step) count <= last ? '0 : count + 1'b1;
            end
        end
    endgenerate
endmodule
